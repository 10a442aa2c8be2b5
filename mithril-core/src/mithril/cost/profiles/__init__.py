"""Profiles of hardware: data files by name, a user's own files, and that of an engine's devices.

What a profile of this package says has its source beside it in its file.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from mithril.cost.hardware import Hardware
from mithril.cost.profiles.reader import Profile, read_file
from mithril.cost.profiles.registry import (
    CORE,
    FOLDER,
    Entry,
    find_profile,
    find_profiles,
    list_profiles,
)
from mithril.cost.profiles.store import check_given, find_stored, list_stored
from mithril.engine import Engine
from mithril.engine.planned import PLANNED
from mithril.errors import OptionError, kind_of

SUFFIXES = (".toml", ".json")
SIMULATED = read_file(FOLDER / "simulated.toml", CORE).hardware
"""The profile of simulated devices; golden plans are pinned to it."""


def load_hardware(which: str | Path) -> Hardware:
    """Return the profile of a name, or in a file; it is `Hardware.load`, too.

    Args:
        which: a name that `mithril hardware` shows, or the path of a TOML or JSON file. A text that
            ends in `.toml` or `.json` is a path.

    Raises:
        OptionError: no profile has the name, or the file holds none.

    >>> from mithril.types import DType
    >>> h100 = Hardware.load("h100-sxm")
    >>> h100.memory_bytes, h100.peak(DType.bfloat16)
    (80000000000, 989400000000000.0)
    """
    return load_profile(which).hardware


Hardware.load = staticmethod(load_hardware)


def load_profile(which: str | Path) -> Profile:
    """Return the profile of a name, or in a file, with what it says besides its figures.

    Args:
        which: a name, or the path of a TOML or JSON file.

    Raises:
        OptionError: no profile has the name, or the file holds none.
    """
    if not isinstance(which, str | Path):
        raise OptionError(
            f"hardware is {kind_of(which)}; give a name such as 'h100-sxm', the path of a TOML "
            f"file, or a Hardware"
        )
    if isinstance(which, Path) or which.endswith(SUFFIXES):
        return read_file(Path(which))
    return find_profile(which)


def as_hardware(given: Hardware | str | Path) -> Hardware:
    """Return a profile, or that of a name or in a file.

    Raises:
        OptionError: no profile has the name, or the file holds none.
    """
    return given if isinstance(given, Hardware) else load_hardware(given)


def find_hardware(engine: Engine, given: Hardware | str | Path | None = None) -> Hardware:
    """Return the profile of an engine's devices, with what carries their data and how it runs.

    Args:
        engine: whose devices.
        given: what a user says they are; by default it is found by what they call themselves.
            and calibrated if they were on this machine. Where no profile is known it is that of
            simulated devices, which says so.

    Raises:
        OptionError: no profile has the name, the file holds none, or it was measured on devices of
            another kind.
    """
    if given is None:
        stored = find_stored(engine).hardware
        found = _add_fewer(stored, engine) if stored else find_described(engine)
    else:
        found = as_hardware(given)
        check_given(found, engine)
    here = replace(found, transport=engine.transport, execution=engine.execution)
    if given is not None and (found.calibration is None or engine.platform == PLANNED):
        return found.on(here)  # devices that are elsewhere
    return here.serving(engine.execution.devices_per_processor)


def _add_fewer(found: Hardware, engine: Engine) -> Hardware:
    """Return a stored profile that knows the figures of fewer devices at work, too."""
    known = (stored.hardware for stored in list_stored(engine))
    counts = {one.calibration.devices: one for one in known if one and one.calibration}
    fewer = {count: one for count, one in counts.items() if count < engine.mesh.size}
    return replace(found, shared=(*sorted(fewer.items()), *found.shared))


def find_described(engine: Engine) -> Hardware:
    """Return the profile that describes the kind of an engine's devices, as nobody measured it."""
    kind = engine.device_kind
    for profile in find_profiles().values():
        if any(fnmatchcase(kind, pattern) for pattern in profile.matches):
            return profile.hardware
    return replace(SIMULATED, unknown_platform=engine.platform)


__all__ = [
    "SIMULATED", "Entry", "Profile", "as_hardware", "find_described", "find_hardware",
    "find_profile", "find_stored", "find_profiles", "list_profiles", "load_hardware",
    "load_profile",
]  # fmt: skip
