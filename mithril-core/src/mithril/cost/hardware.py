"""Hardware profiles: the few numbers that price a plan.

`PROFILES` has all there are, by platform. A platform without one is planned with the numbers of
simulated devices, so that there is a plan at all; the profile then says whom it does not describe,
the plan keeps that (`Plan.pricing`), and no times are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.engine import Engine
from mithril.engine.transport import Transport
from mithril.mesh import Mesh
from mithril.plan import Pricing


@dataclass(frozen=True, slots=True)
class Link:
    """What a message costs: `latency + bytes / bandwidth` seconds (the alpha-beta model).

    Args:
        latency: seconds to start one message (alpha).
        bandwidth: bytes per second a device sends (1 / beta).
    """

    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Hardware:
    """Speed of one device and of the links between devices.

    Args:
        name: of the profile, for reports.
        latency: seconds to start one message.
        bandwidth: bytes per second a device sends.
        flops: floating-point operations per second of one device.
        transport: what carries the data, if it lacks some collectives.
        unknown_platform: the platform that is planned with this profile though no profile describes
            it; empty where the profile is its own.
    """

    name: str
    latency: float
    bandwidth: float
    flops: float
    transport: Transport | None = None
    unknown_platform: str = ""

    @property
    def pricing(self) -> Pricing:
        """What a plan says of the profile."""
        return Pricing(self.name, self.unknown_platform)

    def link(self, mesh: Mesh, axes: Sequence[str] = ()) -> Link:
        """Return what a message costs that goes over mesh axes: the same over all of them.

        Args:
            mesh: the devices.
            axes: the axes it goes over; none for what is sent to another stage.

        >>> SIMULATED.link(Mesh(data=2, tensor=4), ["tensor"])
        Link(latency=1e-07, bandwidth=1000000000.0)
        """
        return Link(self.latency, self.bandwidth)


SIMULATED = Hardware("simulated", latency=1e-7, bandwidth=1e9, flops=1e9)
"""The profile of simulated devices; golden plans are pinned to it."""

PROFILES: Mapping[str, Hardware] = {"simulated": SIMULATED}
"""Profiles by platform (see `Engine.platform`)."""


def hardware_of(platform: str) -> Hardware:
    """Return the profile of a platform; that of simulated devices, saying so, where none is known.

    >>> hardware_of("simulated").bandwidth
    1000000000.0
    >>> hardware_of("gpu").pricing
    Pricing(profile='simulated', unknown_platform='gpu')
    """
    if platform in PROFILES:
        return PROFILES[platform]
    return replace(SIMULATED, unknown_platform=platform)


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
