"""Hardware: the numbers of a device and of the links between devices that price a plan.

Profiles are data files (`mithril.cost.profiles`). A platform without one is planned with the
numbers of simulated devices, so that there is a plan at all; the profile then says whom it does not
describe, the plan keeps that (`Plan.pricing`), and no times are shown. Figures that no device can
have are refused wherever a profile comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from mithril.cost.crossing import count_members, level_within
from mithril.cost.levels import NEIGHBOURS, RING, Level, Link, check_levels
from mithril.cost.rates import Rate, check_figure, check_peak, check_rate, interpolate, scale
from mithril.engine.transport import Transport
from mithril.errors import OptionError
from mithril.mesh import Mesh
from mithril.ops.collective import SEND, class_of, is_collective
from mithril.plan import Execution, Pricing
from mithril.types import DType


@dataclass(frozen=True, slots=True)
class Calibration:
    """How and where the figures of a profile were measured.

    Args:
        date: when.
        backend: on which backend.
        device_kind: what the devices call themselves.
        devices: how many computed at the same time.
        machine: the processor and its cores, which devices of the kind `cpu` do not name.
        fuses: whether the backend ran chains of elementwise ops as one kernel.
        in_turn: whether the devices computed one after the other.
        versions: of packages, by name.
        reference_seconds: what the products of `prepare_reference` took at least, with all devices
            at work: as long as they take now, the machine is as fast as it was.
        errors: by what was fitted, the root mean square of relative residuals.
    """

    date: date
    backend: str
    device_kind: str
    devices: int
    machine: str
    fuses: bool
    in_turn: bool
    reference_seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Speed of one device and of the links between devices.

    Args:
        name: of the profile, for reports.
        rates: floating-point operations per second of a product, by dtype, as they are reached.
        peaks: the most that the device is made for, by dtype, of which utilisation is a share; what
            `rates` reach where it is not given.
        vector_rate: the same of everything else.
        memory_bandwidth: bytes per second between a device and its memory, of what is large.
        bandwidths: the same by the bytes of a kernel, rising in them, where caches make a
            difference; empty where it is always that.
        op_rates: operations per second, by their number, of ops by name that have a rate of their
            own.
        levels: of links, the innermost first.
        kernel_seconds: what starting one kernel costs.
        call_seconds: what starting a program costs besides.
        memory_bytes: what a device can hold; None where that is not known.
        transport: what carries the data, if it lacks some collectives.
        execution: how programs run on it.
        unknown_platform: the platform that is planned with this profile though no profile describes
            it; empty where the profile is its own.
        host_bandwidth: bytes per second between a device and the memory of its host, each way; None
            where they are one, or that is not known: a copy then reads and writes memory.
        origin: where the profile comes from: a package, or the path of a file.
        calibration: how and where its figures were measured; None where it was not made by
            `mithril calibrate`.
        shared: the figures of one device while several are at work on the same processor, by how
            many they are.

    Raises:
        OptionError: a figure is none that a device can have.
    """

    name: str
    rates: Mapping[DType, Rate]
    vector_rate: float
    memory_bandwidth: float
    levels: tuple[Level, ...]
    kernel_seconds: float = 0.0
    call_seconds: float = 0.0
    memory_bytes: int | None = None
    host_bandwidth: float | None = None
    bandwidths: Rate = ()
    op_rates: Mapping[str, Rate] = field(default_factory=dict)
    peaks: Mapping[DType, float] = field(default_factory=dict)
    transport: Transport | None = field(default=None, repr=False)
    execution: Execution = field(default_factory=Execution)
    unknown_platform: str = ""
    shared: tuple[tuple[int, Hardware], ...] = field(default=(), repr=False)
    origin: str = field(default="", compare=False)
    calibration: Calibration | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_figure("device", "vector_rate", self.vector_rate)
        check_figure("device", "memory_bandwidth", self.memory_bandwidth, most=math.inf)
        check_figure("device", "kernel_seconds", self.kernel_seconds, least=0.0)
        if self.host_bandwidth is not None:
            check_figure("device", "host_bandwidth", self.host_bandwidth)
        if self.memory_bytes is not None:
            check_figure("device", "memory", self.memory_bytes)
        if DType.float32 not in self.rates:
            raise OptionError("device has no rate of float32; give one, which others fall back on")
        for dtype, points in self.rates.items():
            check_rate(f"rate of {dtype}", points)
        for dtype, peak in self.peaks.items():
            check_figure(f"peak of {dtype}", "operations a second", peak)
            check_peak(dtype, peak, self.rates)
        if self.bandwidths:
            check_rate("memory_bandwidth", self.bandwidths)
        for name, rate in self.op_rates.items():
            check_rate(f"rate of op '{name}'", rate)
        check_levels(self.levels)

    load: ClassVar[Callable[[str | Path], Hardware]]
    """Returns the profile of a name, or in a file: `Hardware.load("h100-sxm")`.

    It is `mithril.cost.profiles.load_hardware`, set there: a file is read by what knows this class.
    """

    def on(self, other: Hardware) -> Hardware:
        """Return this profile with what carries the data, and how programs run, on another.

        Its devices are real ones: each has a processor of its own.
        """
        return self.run_by(other.transport, other.execution, Execution())

    def run_by(
        self, transport: Transport | None, execution: Execution, placed: Execution
    ) -> Hardware:
        """Return this profile with what carries the data, and how programs run.

        Args:
            transport: what carries the data.
            execution: how programs run.
            placed: says instead of it how devices share processors.
        """
        execution = replace(
            execution,
            in_turn=placed.in_turn,
            devices_per_processor=placed.devices_per_processor,
            largest_part=placed.largest_part,
            shares_threads=placed.shares_threads,
        )
        return replace(self, transport=transport, execution=execution)

    def as_measured(self) -> Hardware:
        """Return this profile as that of so many devices at work as it was measured with."""
        count = 1 if self.calibration is None else self.calibration.devices
        return replace(self, shared=((count, self),)) if count > 1 else self

    def serving(self, devices: int) -> Hardware:
        """Return the profile of one device while several are at work on the same processor.

        It computes as was measured then; where nothing was, devices share the processor evenly.
        Links stay as they are, but for messages: these wait for a turn on a core where `execution`
        says that devices are processes that outnumber the cores, however many are at work.

        Args:
            devices: how many there are.

        >>> from mithril.cost import SIMULATED
        >>> SIMULATED.serving(4).rate(DType.float32)
        250000000.0
        """
        known = ((count, figures) for count, figures in self.shared if count <= devices)
        measured, figures = max(known, key=lambda item: item[0], default=(1, self))
        execution = self.execution
        on_a_core = 1.0 if execution.shares_threads else execution.largest_part
        return replace(
            figures.scale_compute(measured / devices),
            name=self.name,
            levels=tuple(x.share_cores(on_a_core) for x in self.levels),
            memory_bytes=self.memory_bytes,
            host_bandwidth=self.host_bandwidth,
            transport=self.transport,
            execution=execution,
            unknown_platform=self.unknown_platform,
            shared=self.shared,
            origin=self.origin,
            calibration=self.calibration,
        )

    def scale_compute(self, part: float) -> Hardware:
        """Return the profile of a device that computes `part` times as fast.

        >>> from mithril.cost import SIMULATED
        >>> SIMULATED.scale_compute(0.5).rate(DType.float32)
        500000000.0
        """
        return replace(
            self,
            rates={dtype: scale(rate, part) for dtype, rate in self.rates.items()},
            vector_rate=self.vector_rate * part,
            op_rates={name: scale(rate, part) for name, rate in self.op_rates.items()},
            peaks={dtype: peak * part for dtype, peak in self.peaks.items()},
            memory_bandwidth=self.memory_bandwidth * part,
            bandwidths=scale(self.bandwidths, part),
            kernel_seconds=self.kernel_seconds / part,
        )

    @property
    def hides_collectives(self) -> bool:
        """Whether a device computes while one of its collectives is on its way.

        Devices that outnumber the cores of their processor leave none idle. What this has to carry,
        too, then takes as long beside what is computed as after it.
        """
        is_crowded = self.execution.largest_part > 1
        is_carried = all(level.by_processor for level in self.levels)
        return self.execution.hides_collectives and not (is_crowded and is_carried)

    @property
    def pricing(self) -> Pricing:
        """What a plan says of the profile."""
        return Pricing(self.name, self.unknown_platform, self.execution)

    def rate(self, dtype: DType, flops: float = math.inf) -> float:
        """Return the operations per second of a product.

        Args:
            dtype: of its operands; one that no figure is known of runs as float32.
            flops: its size; by default it is large.

        >>> Hardware.load("simulated").rate(DType.float32)
        1000000000.0
        """
        return interpolate(self._points(dtype), flops)

    def peak(self, dtype: DType) -> float:
        """Return the operations per second of products that the device is made for.

        Args:
            dtype: of their operands.

        >>> h100 = Hardware.load("h100-sxm")
        >>> h100.peak(DType.bfloat16) > h100.rate(DType.bfloat16)
        True
        """
        known = self.peaks.get(dtype) if dtype in self.rates else self.peaks.get(DType.float32)
        return known or max(rate for _, rate in self._points(dtype))

    def _points(self, dtype: DType) -> Rate:
        return self.rates.get(dtype) or self.rates[DType.float32]

    def op_rate(self, name: str, flops: float) -> float | None:
        """Return the operations per second of an op; None where it has no rate of its own.

        Args:
            name: of the op.
            flops: its operations.
        """
        return interpolate(self.op_rates[name], flops) if name in self.op_rates else None

    def bandwidth(self, nbytes: float) -> float:
        """Return the bytes per second between a device and its memory.

        Args:
            nbytes: what a kernel reads and writes; what is small may stay in caches.
        """
        return interpolate(self.bandwidths, nbytes) if self.bandwidths else self.memory_bandwidth

    def copy_seconds(self, nbytes: float) -> float:
        """Return what it takes to copy something to the host, or from it.

        Args:
            nbytes: how much.
        """
        moving = 2 * nbytes / self.bandwidth(2 * nbytes)  # read and written
        if self.host_bandwidth is not None:
            moving = nbytes / self.host_bandwidth
        return self.kernel_seconds + moving

    def link(self, mesh: Mesh, axes: Sequence[str] = (), kind: str = "") -> Link:
        """Return what a message costs that goes over mesh axes: that of the level they cross.

        Where devices pass on what they get, those of a node that take part share all links that
        lead out of it, as the rings of NCCL do: each crosses a node's border once, over the links
        of another device.

        Args:
            mesh: the devices; in flat order, the last axis varies fastest.
            axes: the axes it goes over; none for what may go anywhere in the mesh.
            kind: of the collective that it is part of; empty for any.

        >>> node, pod = Level("node", 4, 1e-6, 1e11), Level("pod", None, 1e-5, 1e10)
        >>> mine = replace(Hardware.load("simulated"), levels=(node, pod))
        >>> mesh = Mesh(data=2, tensor=4)
        >>> mine.link(mesh, ["tensor"]).bandwidth, mine.link(mesh, ["data"]).bandwidth
        (100000000000.0, 10000000000.0)
        """
        if len(self.levels) == 1:
            return self._measure_way(self.levels[0].link_of(kind), mesh, axes)
        sizes = tuple(level.devices for level in self.levels)
        members = count_members(sizes, mesh, tuple(axes))
        outermost = self.levels[len(members) - 1].link_of(kind)
        shares = axes and is_collective(kind) and class_of(kind).passes_on
        if outermost.topology in NEIGHBOURS or not shares:
            return self._measure_way(outermost, mesh, axes)
        links = [level.link_of(kind) for level in self.levels[: len(members)]]
        shared = (link.bandwidth * n for link, n in zip(links, members, strict=True) if n)
        return replace(outermost, bandwidth=min(shared))

    def _measure_way(self, link: Link, mesh: Mesh, axes: Sequence[str]) -> Link:
        """Return a link of a ring with the links between members of a group one after another."""
        if link.topology != RING or mesh.size == 1:
            return link
        members = sorted(map(mesh.in_whole, mesh.groups(tuple(axes) or mesh.names)[0]))
        return replace(link, distance=max(b - a for a, b in pairwise(members)))

    def link_between(self, devices: Sequence[int]) -> Link:
        """Return what a message costs that goes between devices of any two.

        Args:
            devices: flat indices in the whole mesh.
        """
        sizes = [level.devices for level in self.levels]
        level = self.levels[level_within(sizes, devices)]
        link = level.link_of(SEND)
        if link.topology != RING or level.devices is None:
            return link
        apart = max(devices) - min(devices)
        return replace(link, distance=max(1, min(apart, level.devices - apart)))


def hardware_within(hardware: Hardware, devices: tuple[int, ...]) -> Hardware:
    """Return the profile of some of the devices, whose data may have to be carried otherwise.

    Args:
        hardware: the profile of all.
        devices: their flat indices in the whole mesh.
    """
    if hardware.transport is None:
        return hardware
    return replace(hardware, transport=hardware.transport.within(devices))
