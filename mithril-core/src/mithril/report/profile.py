"""Figures of a profile: what was measured of runs, by layer, by collective and by device.

Seconds of a layer are those in which a device worked, on average over the devices that have it;
where one processor works for all devices in turn, those in which it worked for all of them. Bytes
are counted as plans count them: those that each device moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mithril.engine.recording import MemoryUse, Span
from mithril.mesh import Mesh
from mithril.plan import Issued, Plan
from mithril.report.device_graph import DeviceGraph, build_device_graph


@dataclass(frozen=True, eq=False)
class ProfiledRun:
    """One run of a plan.

    Args:
        caller: what ran, such as `jit(step)`.
        plan: its plan.
        start: seconds on the clock of `time.perf_counter`.
        end: likewise.
        seconds: how long it took, without what belongs to no run, such as compiling a program.
        issued: collectives and messages that it carried out.
        spans: when its segments ran.
        memory: what was in use.
    """

    caller: str
    plan: Plan
    start: float
    end: float
    seconds: float
    issued: tuple[Issued, ...]
    spans: tuple[Span, ...]
    memory: tuple[MemoryUse, ...]


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """What was measured of devices, one number a device; NaN where nothing is known.

    Args:
        compute: seconds in which it computed.
        communication: seconds in which it did nothing but exchange data, or wait for others.
        step: seconds of all runs, as the device sees them.
        peak: most bytes in use at once.
    """

    compute: np.ndarray
    communication: np.ndarray
    step: np.ndarray
    peak: np.ndarray

    @property
    def utilization(self) -> np.ndarray:
        """The part of the time of all runs in which a device computed; NaN if it is not known."""
        known = np.where(self.step > 0, self.step, 1.0)
        found: np.ndarray = np.clip(self.compute / known, 0.0, 1.0)
        return found


@dataclass(frozen=True, eq=False)
class ProfileFigures:
    """What a profile has measured.

    Args:
        backend: its name.
        mesh: its devices.
        here: flat indices of the devices of this process.
        in_turn: whether they work one after the other on one processor.
        runs: in order.
        overhead: seconds that the profile took beside the runs, and an estimate of those within.
        seconds: between the begin and the end of the profile.
    """

    backend: str
    mesh: Mesh
    here: tuple[int, ...]
    in_turn: bool
    runs: tuple[ProfiledRun, ...]
    overhead: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0

    # ------------------------------------------------------------------ communication

    @property
    def issued(self) -> Iterator[Issued]:
        """Everything that was carried out, in order."""
        return (issued for run in self.runs for issued in run.issued)

    def count_communication(self) -> dict[str, object]:
        """Return what `Profile.communication_stats` returns."""
        by_kind: defaultdict[str, int] = defaultdict(int)
        by_layer: defaultdict[str, int] = defaultdict(int)
        seconds: defaultdict[str, float] = defaultdict(float)
        count = 0
        for issued in self.issued:
            count += 1
            by_kind[issued.kind] += issued.bytes
            seconds[issued.kind] += issued.seconds or 0.0
            for layer, nbytes in issued.split_by_layer().items():
                by_layer[layer] += nbytes
        return {
            "total_bytes": sum(by_kind.values()),
            "count": count,
            "seconds": sum(seconds.values()),
            "by_kind": dict(by_kind),
            "by_layer": dict(by_layer),
            "seconds_by_kind": dict(seconds),
        }

    def count_by_dimension(self) -> dict[str, int]:
        """Return what `Profile.communication_by_dimension` returns."""
        found = dict.fromkeys(self.mesh.names, 0)
        for issued in self.issued:
            key = "+".join(issued.axes) or issued.kind
            found[key] = found.get(key, 0) + issued.bytes
        aliases = {f"{name}_parallel": found[name] for name in self.mesh.names}
        if "tensor" in self.mesh.names:
            aliases.setdefault("model_parallel", found["tensor"])
        return found | aliases

    def build_graph(self) -> DeviceGraph:
        """Return what `Profile.communication_graph` returns."""
        return build_device_graph(self.mesh, ((run.plan, run.issued) for run in self.runs))

    # ------------------------------------------------------------------ time

    @cached_property
    def layers(self) -> dict[str, dict[str, float]]:
        """What `Profile.layers` returns."""
        seconds = sum_by_layer(self.runs, self.in_turn)
        total = sum(map(sum, seconds.values())) or 1.0
        rows = sorted(seconds.items(), key=lambda item: -sum(item[1]))
        return {
            layer: {
                "seconds": forward + backward,
                "share": (forward + backward) / total,
                "forward": forward,
                "backward": backward,
            }
            for layer, (forward, backward) in rows
        }

    @property
    def is_timed_whole(self) -> bool:
        """Whether the engine does not say what its programs did when."""
        return bool(self.runs) and not any(run.spans for run in self.runs)

    @cached_property
    def devices(self) -> DeviceFigures:
        """What was measured of the devices of this process."""
        size = self.mesh.size
        compute, communication, step = np.full((3, size), np.nan)
        here = list(self.here)
        if not self.is_timed_whole:
            compute[here] = communication[here] = 0.0
        for run in self.runs:
            for device, (busy, moving) in _find_busy(run, self.in_turn).items():
                compute[device] += busy
                communication[device] += moving
        took = float(np.max((compute + communication)[here], initial=0.0))
        step[here] = took if self.in_turn else sum(run.seconds for run in self.runs)
        peak = np.full(size, np.nan)
        for use in self.memory:
            if len(use.devices) == 1:
                peak[use.devices[0]] = use.peak
        return DeviceFigures(compute, communication, step, peak)

    # ------------------------------------------------------------------ memory

    @cached_property
    def memory(self) -> tuple[MemoryUse, ...]:
        """The most that devices had in use, over all runs."""
        return merge_memory(use for run in self.runs for use in run.memory)


def sum_by_layer(runs: Iterable[ProfiledRun], in_turn: bool) -> dict[str, list[float]]:
    """Return by layer the seconds of computing forward and backward.

    Args:
        runs: of which.
        in_turn: whether devices work in turn; then it is the time of all, otherwise the average
            over the devices that have the layer.
    """
    seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for run in runs:
        devices: defaultdict[str, set[int]] = defaultdict(set)
        found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for span in run.spans:
            segment = span.segment
            if segment.stream == "compute":
                devices[segment.scope].update(span.devices)
                took = span.end - span.start if in_turn else span.seconds * len(span.devices)
                found[segment.scope][segment.phase == "backward"] += took
        for layer, phases in found.items():
            for phase, took in enumerate(phases):
                seconds[layer][phase] += took / (1 if in_turn else len(devices[layer]))
    return dict(seconds)


def sum_by_axes(runs: Iterable[ProfiledRun], devices: int) -> dict[str, tuple[float, float]]:
    """Return by mesh axes the seconds of communication, and those in which nothing else was done.

    Args:
        runs: of which.
        devices: how many, over which they are averaged.
    """
    found: dict[str, tuple[float, float]] = {}
    for run in runs:
        for span in run.spans:
            issued = span.segment.issued
            if issued is not None:
                key, own = "+".join(issued.axes) or issued.kind, len(span.devices) / devices
                took, exposed = found.get(key, (0.0, 0.0))
                found[key] = took + span.seconds * own, exposed + span.exposed * own
    return found


def merge_memory(found: Iterable[MemoryUse]) -> tuple[MemoryUse, ...]:
    """Return the most of each device, or of devices together."""
    most: dict[tuple[int, ...], MemoryUse] = {}
    for use in found:
        known = most.get(use.devices)
        if known is None or use.peak > known.peak:
            most[use.devices] = use
    return tuple(most[devices] for devices in sorted(most))


def group_runs(runs: Sequence[ProfiledRun]) -> list[list[ProfiledRun]]:
    """Return the runs of each plan together, those that took longest first."""
    found: dict[int, list[ProfiledRun]] = {}
    for run in runs:
        found.setdefault(id(run.plan), []).append(run)
    return sorted(found.values(), key=lambda same: -sum(run.seconds for run in same))


def _find_busy(run: ProfiledRun, in_turn: bool) -> Mapping[int, tuple[float, float]]:
    """Return for each device the seconds in which it computed, and those in which it waited."""
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for span in run.spans:
        for device in span.devices:
            spans[device].append(span)
    found = {}
    for device, own in spans.items():
        compute = [span for span in own if span.segment.stream == "compute"]
        moving = sum(span.exposed for span in own if span.segment.stream != "compute")
        # What one device computes at the same time, in several threads, counts once.
        busy = sum(span.seconds for span in compute) if in_turn else _unite(compute)
        found[device] = busy, moving
    return found


def _unite(spans: Iterable[Span]) -> float:
    """Return the time that at least one of some spans covers."""
    total, until = 0.0, -np.inf
    for start, end in sorted((span.start, span.end) for span in spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


__all__ = [
    "DeviceFigures", "ProfileFigures", "ProfiledRun", "group_runs", "merge_memory", "sum_by_axes",
    "sum_by_layer",
]  # fmt: skip
