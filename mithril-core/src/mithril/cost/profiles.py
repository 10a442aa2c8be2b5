"""Profiles of hardware by platform, and which one an engine's devices have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mithril.cost.hardware import SIMULATED, Hardware
from mithril.engine import Engine

PROFILES: Mapping[str, Hardware] = {"simulated": SIMULATED}
"""Profiles by what devices call themselves (see `Engine.device_kind`)."""


def find_hardware(engine: Engine) -> Hardware:
    """Return the profile of an engine's devices, with what carries their data and how it runs.

    Where none is known it is that of simulated devices, which says so.
    """
    known = PROFILES.get(engine.device_kind)
    found = known or replace(SIMULATED, unknown_platform=engine.platform)
    execution = engine.execution
    found = replace(found, transport=engine.transport, execution=execution)
    return found.serving(execution.devices_per_processor)


def as_hardware(given: Hardware | str) -> Hardware:
    """Return a profile, or that of a name.

    Raises:
        OptionError: no profile has the name.
    """
    if isinstance(given, Hardware):
        return given
    raise NotImplementedError("SKELETON: helper 'hardware' builds Hardware.load")
