"""What options of offloading mean: `activation_offload`, `spill_to_host` and their thresholds."""

from __future__ import annotations

import math
from typing import Any

from mithril.errors import OptionError, listing
from mithril.ops.host import ARENAS
from mithril.option_checks import check_flag, is_number
from mithril.partition.offload import Offload
from mithril.runtime.backend import Backend
from mithril.types import to_python

THRESHOLD = 1_000_000
"""Elements that an activation has more than to be offloaded, unless it is said."""
SPILL_MB = 1024
"""MiB from which on what is alive across the peak is spilled, unless it is said."""
MIB = 1 << 20


def read_offload(
    activations: object,
    threshold: object,
    spill: object,
    spill_mb: object,
    arena: object,
    *,
    inference: bool = False,
    has_more: bool = False,
) -> Offload:
    """Return what goes to the host.

    Args:
        activations: `activation_offload=`.
        threshold: `offload_threshold=`, elements; None where it is not given.
        spill: `spill_to_host=`.
        spill_mb: `spill_threshold_mb=`; None where it is not given.
        arena: `host_arena=`; None where it is not given.
        inference: whether there is no backward.
        has_more: whether something else lies in the arena.

    Raises:
        OptionError: one is no number or flag, or has no effect.
    """
    is_on = check_flag("activation_offload", activations)
    spills = check_flag("spill_to_host", spill)
    if is_on and inference:
        raise OptionError(
            "activation_offload=True is given together with inference=True, where nothing is kept "
            "for a backward; leave one out, or use spill_to_host=True"
        )
    least = _read_number("offload_threshold", threshold, "elements", is_on, "activation_offload")
    size = _read_number("spill_threshold_mb", spill_mb, "MiB", spills, "spill_to_host")
    if arena is not None and arena not in ARENAS:
        raise OptionError(
            f"host_arena={arena!r} is no place for a host arena; give one of {listing(ARENAS)}"
        )
    if arena is not None and not (is_on or spills or has_more):
        raise OptionError(
            f"host_arena={arena!r} has no effect where nothing is offloaded; give "
            f"activation_offload=True or spill_to_host=True, too, or leave it out"
        )
    return Offload(
        threshold=math.floor(THRESHOLD if least is None else least) if is_on else None,
        spill=math.ceil((SPILL_MB if size is None else size) * MIB) if spills else None,
        arena="memory" if arena is None else str(arena),
    )


def _read_number(option: str, given: object, unit: str, is_on: bool, switch: str) -> float | None:
    """Return a threshold; None where it is not given."""
    number = to_python(given)
    if number is None:
        return None
    if not is_number(number) or not math.isfinite(float(number)) or float(number) < 0:
        raise OptionError(
            f"{option}={given!r} is no number of {unit}; give a finite number of 0 or more"
        )
    if not is_on:
        raise OptionError(
            f"{option}={given!r} has no effect without {switch}=True; give that, too, or leave it "
            f"out"
        )
    return float(number)


def read_state_arena(given: object, options: dict[str, Any], backend: Backend) -> str | None:
    """Return where the state of an optimiser lies on the host; None where it does not.

    Args:
        given: `offload_optimizer=`.
        options: those of compile; `host_arena` is taken out where nothing else would use it.
        backend: where the step runs.

    Raises:
        OptionError: it is no flag, or the backend keeps no arrays on the host.
    """
    if not check_flag("offload_optimizer", given):
        return None
    if not backend.engine.keeps_on_host:
        raise OptionError(
            f"offload_optimizer=True is not available on backend '{backend.name}', whose arrays "
            f"lie on its devices between programs; split the state with zero=1 instead"
        )
    others = ("activation_offload", "spill_to_host")
    is_shared = any(options.get(name) for name in others)
    arena = options.get("host_arena") if is_shared else options.pop("host_arena", None)
    return read_offload(False, None, False, None, arena, has_more=True).arena


__all__ = ["read_offload", "read_state_arena"]
