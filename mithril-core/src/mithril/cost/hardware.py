"""Hardware: the numbers of a device and of the links between devices that price a plan.

Profiles are data files (`mithril.cost.profiles`). A platform without one is planned with the
numbers of simulated devices, so that there is a plan at all; the profile then says whom it does not
describe, the plan keeps that (`Plan.pricing`), and no times are shown.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mithril.engine.transport import Transport
from mithril.mesh import Mesh
from mithril.plan import Execution, Pricing
from mithril.types import DType

Rate = tuple[tuple[float, float], ...]
"""Floating-point operations per second by the size of a product in such operations, rising.

One point is a constant rate; between points it is interpolated over the logarithm of the size.
"""


@dataclass(frozen=True, slots=True)
class Link:
    """What a message costs: `latency + bytes / bandwidth` seconds (the alpha-beta model).

    Args:
        latency: seconds to start one message (alpha).
        bandwidth: bytes per second a device sends (1 / beta).
        is_torus: whether only neighbours are linked, so that what goes further passes others.
    """

    latency: float
    bandwidth: float
    is_torus: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """Devices that are linked alike: those of a node, the nodes of a pod.

    Args:
        name: `node`, `pod`.
        devices: how many devices in flat order it links, a multiple of those of the level before;
            None for any number.
        latency: seconds to start one message.
        bandwidth: bytes per second a device sends.
        full_duplex: whether it receives as much at the same time; the bandwidth is shared if not.
        topology: `switch`, where any two are linked, or `torus`, where neighbours are.
    """

    name: str
    devices: int | None
    latency: float
    bandwidth: float
    full_duplex: bool = True
    topology: str = "switch"

    @property
    def link(self) -> Link:
        """What a message costs on it."""
        bandwidth = self.bandwidth if self.full_duplex else self.bandwidth / 2
        return Link(self.latency, bandwidth, self.topology == "torus")


@dataclass(frozen=True, slots=True)
class Hardware:
    """Speed of one device and of the links between devices.

    Args:
        name: of the profile, for reports.
        rates: floating-point operations per second of a product, by dtype.
        vector_rate: the same of everything else.
        memory_bandwidth: bytes per second between a device and its memory.
        levels: of links, the innermost first.
        kernel_seconds: what starting one kernel costs.
        call_seconds: what starting a program costs besides.
        memory_bytes: what a device can hold; None where that is not known.
        transport: what carries the data, if it lacks some collectives.
        execution: how programs run on it.
        unknown_platform: the platform that is planned with this profile though no profile describes
            it; empty where the profile is its own.
        shared: the figures of one device while several are at work on the same processor, by how
            many they are.
    """

    name: str
    rates: Mapping[DType, Rate]
    vector_rate: float
    memory_bandwidth: float
    levels: tuple[Level, ...]
    kernel_seconds: float = 0.0
    call_seconds: float = 0.0
    memory_bytes: int | None = None
    transport: Transport | None = field(default=None, repr=False)
    execution: Execution = field(default_factory=Execution)
    unknown_platform: str = ""
    shared: tuple[tuple[int, Hardware], ...] = field(default=(), repr=False)

    def on(self, other: Hardware) -> Hardware:
        """Return this profile with what carries the data, and how programs run, on another.

        Its devices are real ones: each has a processor of its own.
        """
        execution = replace(other.execution, in_turn=False, devices_per_processor=1)
        return replace(self, transport=other.transport, execution=execution)

    def serving(self, devices: int) -> Hardware:
        """Return the profile of one device while several are at work on the same processor.

        That is what was measured then. Where nothing was, the devices share the processor evenly.

        Args:
            devices: how many there are.

        >>> SIMULATED.serving(4).rate(DType.float32)
        250000000.0
        """
        known = ((count, figures) for count, figures in self.shared if count <= devices)
        measured, figures = max(known, key=lambda item: item[0], default=(1, self))
        part = measured / devices
        rates = {d: tuple((n, r * part) for n, r in rate) for d, rate in figures.rates.items()}
        return replace(
            figures,
            name=self.name,
            rates=rates,
            vector_rate=figures.vector_rate * part,
            memory_bandwidth=figures.memory_bandwidth * part,
            kernel_seconds=figures.kernel_seconds / part,
            memory_bytes=self.memory_bytes,
            transport=self.transport,
            execution=self.execution,
            unknown_platform=self.unknown_platform,
            shared=self.shared,
        )

    @property
    def pricing(self) -> Pricing:
        """What a plan says of the profile."""
        return Pricing(self.name, self.unknown_platform, self.execution)

    def rate(self, dtype: DType, flops: float = math.inf) -> float:
        """Return the operations per second of a product.

        Args:
            dtype: of its operands; one that no figure is known of runs as float32.
            flops: its size; by default it is large.

        >>> SIMULATED.rate(DType.float32)
        1000000000.0
        """
        points = self.rates.get(dtype) or self.rates[DType.float32]
        at = bisect_left(points, (flops,))
        if at == 0 or at == len(points):
            return points[min(at, len(points) - 1)][1]
        (small, slow), (large, fast) = points[at - 1], points[at]
        share = math.log(flops / small) / math.log(large / small)
        return slow + share * (fast - slow)

    def link(self, mesh: Mesh, axes: Sequence[str] = ()) -> Link:
        """Return what a message costs that goes over mesh axes: that of the level they cross.

        Args:
            mesh: the devices; in flat order, the last axis varies fastest.
            axes: the axes it goes over; none for what may go anywhere in the mesh.

        >>> node, pod = Level("node", 4, 1e-6, 1e11), Level("pod", None, 1e-5, 1e10)
        >>> mine = replace(SIMULATED, levels=(node, pod))
        >>> mesh = Mesh(data=2, tensor=4)
        >>> mine.link(mesh, ["tensor"]).bandwidth, mine.link(mesh, ["data"]).bandwidth
        (100000000000.0, 10000000000.0)
        """
        if len(self.levels) == 1:
            return self.levels[0].link
        sizes = tuple(level.devices for level in self.levels)
        return self.levels[_find_level(sizes, mesh, tuple(axes))].link

    def link_between(self, devices: Sequence[int]) -> Link:
        """Return what a message costs that goes between devices of any two.

        Args:
            devices: flat indices in the whole mesh.
        """
        sizes = [level.devices for level in self.levels]
        return self.levels[_level_within(sizes, devices)].link


@lru_cache(maxsize=4096)
def _find_level(sizes: tuple[int | None, ...], mesh: Mesh, axes: tuple[str, ...]) -> int:
    """Return the first level that links all devices of every group over some axes."""
    groups = mesh.groups(axes or mesh.names)
    members = ([mesh.in_whole(device) for device in group] for group in groups)
    return max(_level_within(sizes, group) for group in members)


def _level_within(sizes: Sequence[int | None], devices: Sequence[int]) -> int:
    """Return the first level that links some devices; the last one links all there are."""
    first, last = min(devices), max(devices)
    inside = (n for n, size in enumerate(sizes) if size is None or first // size == last // size)
    return next(inside, len(sizes) - 1)


SIMULATED = Hardware(
    "simulated",
    rates={DType.float32: ((1.0, 1e9),)},
    vector_rate=1e9,
    memory_bandwidth=math.inf,
    levels=(Level("any", None, latency=1e-7, bandwidth=1e9),),
)
"""The profile of simulated devices; golden plans are pinned to it."""


def hardware_within(hardware: Hardware, devices: tuple[int, ...]) -> Hardware:
    """Return the profile of some of the devices, whose data may have to be carried otherwise.

    Args:
        hardware: the profile of all.
        devices: their flat indices in the whole mesh.
    """
    if hardware.transport is None:
        return hardware
    return replace(hardware, transport=hardware.transport.within(devices))
