"""Hardware profiles: the few numbers that price a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mithril.engine.transport import Transport

if TYPE_CHECKING:
    from mithril.engine import Engine


@dataclass(frozen=True, slots=True)
class Hardware:
    """Speed of one device and of the links between devices (the alpha-beta model).

    Args:
        latency: seconds to start one message (alpha).
        bandwidth: bytes per second a device sends (1 / beta).
        flops: floating-point operations per second of one device.
        transport: what carries the data, if it lacks some collectives.
    """

    latency: float
    bandwidth: float
    flops: float
    transport: Transport | None = None


SIMULATED = Hardware(latency=1e-7, bandwidth=1e9, flops=1e9)
"""The profile of simulated devices; golden plans are pinned to it."""

PROFILES = {"simulated": SIMULATED}
"""Profiles by platform."""


def hardware_of(platform: str) -> Hardware:
    """Return the profile of a platform; that of simulated devices where none is known.

    >>> hardware_of("simulated").bandwidth
    1000000000.0
    """
    return PROFILES.get(platform, SIMULATED)


def hardware_under(engine: Engine) -> Hardware:
    """Return the profile of an engine's platform, with what carries its data."""
    return replace(hardware_of(engine.platform), transport=engine.transport)


def hardware_within(hardware: Hardware, devices: tuple[int, ...]) -> Hardware:
    """Return the profile of some of the devices, whose data may have to be carried otherwise.

    Args:
        hardware: the profile of all.
        devices: their flat indices in the whole mesh.
    """
    if hardware.transport is None:
        return hardware
    return replace(hardware, transport=hardware.transport.within(devices))
