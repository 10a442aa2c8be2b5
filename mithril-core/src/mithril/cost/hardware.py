"""Hardware profiles: the few numbers that price a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """Speed of one device and of the links between devices (the alpha-beta model).

    Args:
        latency: seconds to start one message (alpha).
        bandwidth: bytes per second a device sends (1 / beta).
        flops: floating-point operations per second of one device.
    """

    latency: float
    bandwidth: float
    flops: float


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
