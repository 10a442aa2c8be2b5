"""Calibrated profiles of this machine, one file for a backend, a kind and a number of devices.

They lie in the user's data directory, or in that which `MITHRIL_DATA_DIR` names. What is found
there and does not fit is left aside, and said where profiles are shown.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mithril.cost.hardware import Calibration, Hardware
from mithril.cost.profiles.machine import describe_machine
from mithril.cost.profiles.reader import Profile, read_file, write_content
from mithril.engine import Engine
from mithril.engine.planned import PLANNED
from mithril.errors import OptionError
from mithril.files import replace_file

VARIABLE = "MITHRIL_DATA_DIR"


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored for an engine's devices.

    Args:
        path: where it is, or would be.
        hardware: the profile; None where there is none, or it does not fit.
        note: why it is left aside; empty where it is not.
    """

    path: Path
    hardware: Hardware | None = None
    note: str = ""


def find_folder() -> Path:
    """Return the folder of calibrated profiles; it need not be there."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named) / "hardware"
    from platformdirs import user_data_path

    return user_data_path("mithril", appauthor=False) / "hardware"


def find_path(backend: str, device_kind: str, devices: int) -> Path:
    """Return where the profile of some devices is stored."""
    kind = re.sub(r"[^A-Za-z0-9]+", "-", device_kind).strip("-").lower()
    return find_folder() / f"{backend}-{kind}-{devices}.json"


def find_stored(engine: Engine) -> Stored:
    """Return the calibrated profile of an engine's devices, if it is used for them.

    In a job of several processes none is: they have to choose the same plan, and each might have
    measured for itself.
    """
    path = find_path(engine.name, engine.device_kind, engine.mesh.size)
    return _judge(path, engine, engine.mesh.size) if path.exists() else Stored(path)


def list_stored(engine: Engine) -> list[Stored]:
    """Return the calibrated profiles of an engine's kind of devices, for any number of them."""
    pattern = find_path(engine.name, engine.device_kind, 0).name.replace("-0.", "-[0-9]*.")
    paths = sorted(find_folder().glob(pattern))
    return [_judge(path, engine, None) for path in paths]


def _judge(path: Path, engine: Engine, devices: int | None) -> Stored:
    """Return what a file holds; `devices` is how many it has to be of, None for any number."""
    if engine.process_count > 1:
        return Stored(path, note="not used in a job of several processes; give it by hardware=")
    try:
        hardware = read_file(path).hardware
    except OptionError as error:
        return Stored(path, note=str(error))
    if hardware.calibration is None:
        return Stored(path, note="has no 'calibration'; run `mithril calibrate` again")
    note = _explain_misfit(hardware.calibration, engine, devices)
    return Stored(path, None if note else hardware, note)


def _explain_misfit(made: Calibration, engine: Engine, devices: int | None) -> str:
    """Return why a calibrated profile is not of an engine's devices; empty where it is."""
    execution = engine.execution
    compared = (
        ("backend", made.backend, engine.name),
        ("device", made.device_kind, engine.device_kind),
        ("number of devices", made.devices, made.devices if devices is None else devices),
        ("machine", made.machine, describe_machine()),
        ("fusion", made.fuses, execution.fuses),
        ("execution in turn", made.in_turn, execution.in_turn),
    )
    for what, theirs, ours in compared:
        if theirs != ours:
            return f"was measured with {what} '{theirs}', and here it is '{ours}'"
    return ""


def check_given(hardware: Hardware, engine: Engine) -> None:
    """Raise if a profile was measured on devices of another kind than an engine has.

    Devices that are only planned for are of the kind that a profile says.

    Raises:
        OptionError: it was.
    """
    made = hardware.calibration
    is_other = made is not None and made.device_kind != engine.device_kind
    if made is not None and is_other and engine.platform != PLANNED:
        raise OptionError(
            f"hardware profile '{hardware.name}' was measured on '{made.device_kind}', and "
            f"backend '{engine.name}' has '{engine.device_kind}'; calibrate here, or give the "
            f"name of a profile"
        )


def save(hardware: Hardware, path: Path) -> None:
    """Write a profile as JSON; a file is whole or not there, whatever happens meanwhile.

    Args:
        hardware: the profile.
        path: where; folders on the way are made.

    Raises:
        OptionError: it cannot be written.
    """
    text = json.dumps(write_content(Profile(hardware)), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda new: new.write_text(text, encoding="utf-8"), is_contended=True)
    except OSError as error:
        raise OptionError(
            f"hardware profile '{path}' cannot be written; {error}; give another path by --out"
        ) from error
