"""Recording: what a measured run is made of: spans of time by segment, collectives, memory.

An engine that is measuring (`Engine.measuring`) has programs that say when they come from one
*segment* to the next: a segment is what stands together in a program and belongs to one layer and
phase, or one exchange of data. They tell a `Recorder`, which is an observer to all others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

from mithril.engine.host_arena import lies_in_arena
from mithril.ir import Node, Phase
from mithril.ir.start import find_begun
from mithril.plan.issued import Issued


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a program that belongs to one layer, or one exchange of data.

    Args:
        name: the layer's path, or the kind of collective.
        scope: layer path.
        phase: forward or backward; None where that is not known.
        issued: what is exchanged, if it is an exchange.
        share: the part of its time in which one device works, where one processor works for all
            devices in turn.
    """

    name: str
    scope: str = ""
    phase: Phase | None = None
    issued: Issued | None = None
    share: float = 1.0

    @property
    def stream(self) -> str:
        """`compute` or `communication`."""
        return "compute" if self.issued is None else "communication"


def segment_of(node: Node, issued: Issued | None = None) -> Segment:
    """Return the segment that a node begins."""
    name = node.scope or find_begun(node.op).name if issued is None else issued.kind
    return Segment(name, node.scope, node.phase, issued)


@dataclass(frozen=True, slots=True)
class Span:
    """When a segment ran.

    Args:
        segment: what ran.
        devices: flat indices of the devices it ran for, in the whole mesh.
        start: seconds on the clock of `time.perf_counter`.
        end: likewise.
        waited: of an exchange, the seconds in which the device did nothing else; all by default.
    """

    segment: Segment
    devices: tuple[int, ...]
    start: float
    end: float
    waited: float | None = None

    @property
    def seconds(self) -> float:
        """The time a device worked in it."""
        return (self.end - self.start) * self.segment.share

    @property
    def exposed(self) -> float:
        """The time in which a device did nothing else."""
        return self.seconds if self.waited is None else self.waited * self.segment.share


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The most memory that was in use at once.

    Args:
        devices: flat indices of the devices that it is of, all together if there are several.
        peak: bytes.
        how: how it was found, for reports.
    """

    devices: tuple[int, ...]
    peak: int
    how: str


class Tally(Protocol):
    """Counts the memory of arrays while they live."""

    def hold(self, devices: Sequence[int], *arrays: Any) -> None:
        """Count arrays that devices hold from now on until nobody has them any more."""
        ...


class Recorder:
    """An observer that is told of times and memory, too: one for each run.

    Args:
        counts_memory: whether memory is to be counted in this run.

    Attributes:
        issued: collectives and messages that were carried out.
        spans: when segments ran.
        memory: what was in use.
        paused: seconds that belong to no run, such as those of compiling a program.
        start: when the run began, on the clock of `time.perf_counter`.
        end: when it was over.
        deferred: what the engine's profiler knows what to do with when the profile ends.
        later: what is left to work out of what was noted, so that a run does not wait for it.
        marks: how often the time was taken in it.
    """

    def __init__(self, counts_memory: bool = False) -> None:
        self.counts_memory = counts_memory
        self.issued: list[Issued] = []
        self.spans: list[Span] = []
        self.memory: list[MemoryUse] = []
        self.paused = self.start = self.end = 0.0
        self.tally: Tally | None = None
        self.deferred: list[Any] = []
        self.later: list[Callable[[], None]] = []
        self.marks = 0
        self._stamps: list[tuple[Segment | None, float]] = []

    def __call__(self, issued: Issued) -> None:
        """Take note of an exchange that was carried out."""
        self.issued.append(issued)

    def mark(self, segment: Segment | None) -> None:
        """Take the time: a segment begins, or none, and the one before is over."""
        self._stamps.append((segment, perf_counter()))

    def hold(self, devices: Sequence[int], *arrays: Any) -> None:
        """Count arrays that devices hold from now on."""
        assert self.tally is not None, "who counts memory has something to count it with"
        self.tally.hold(devices, *arrays)

    def collect(self, devices: tuple[int, ...]) -> None:
        """Turn the times taken since the last call into spans.

        Args:
            devices: those that the segments ran for.
        """
        stamps, self._stamps = self._stamps, []
        self.later.append(partial(self._make_spans, devices, stamps))

    def _make_spans(
        self, devices: tuple[int, ...], stamps: Sequence[tuple[Segment | None, float]]
    ) -> None:
        self.marks += len(stamps)
        seconds: dict[int, list[float]] = {}
        for (segment, start), (_, end) in pairwise(stamps):
            if segment is not None:
                self.spans.append(Span(segment, devices, start, end))
                if segment.issued is not None:
                    found = seconds.setdefault(id(segment.issued.origin), [])
                    found.append(self.spans[-1].seconds)
        self.set_seconds(seconds)

    def finish(self) -> None:
        """Work out what is left."""
        later, self.later = self.later, []
        for work in later:
            work()

    def set_seconds(self, seconds: Mapping[int, Sequence[float]]) -> None:
        """Say how long exchanges took, once that is known.

        Args:
            seconds: by the identity of a node or transfer, how long each device took for each run
                of it; the average counts.
        """
        for number, issued in enumerate(self.issued):
            found = seconds.get(id(issued.origin))
            if found:
                self.issued[number] = replace(issued, seconds=sum(found) / len(found))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Return a context whose time belongs to no run."""
        start = perf_counter()
        try:
            yield
        finally:
            self.paused += perf_counter() - start


@dataclass
class ArrayTally:
    """Counts the memory of NumPy arrays by device; a view has that of the array it looks at.

    What happens is noted, and added up at the end: a run pays for the notes alone.
    """

    events: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    _held: dict[int, tuple[set[int], weakref.ref[Any]]] = field(default_factory=dict)

    def hold(self, devices: Sequence[int], *arrays: Any) -> None:
        """Count arrays that devices hold from now on until nobody has them any more."""
        for x in arrays:
            if lies_in_arena(x):
                continue  # other memory than the device's own
            root = x
            while getattr(root, "base", None) is not None:
                root = root.base
            if not hasattr(root, "nbytes"):  # a scalar, or memory that is another library's
                root = x
            self._hold(tuple(devices), root)

    def _hold(self, devices: tuple[int, ...], root: Any) -> None:
        known = self._held.get(id(root))
        if known is not None:
            new = tuple(device for device in devices if device not in known[0])
            if new:
                known[0].update(new)
                self.events.append((new, root.nbytes))
            return
        key, holders, size = id(root), set(devices), root.nbytes

        def let_go(_: object) -> None:
            del self._held[key]
            self.events.append((tuple(holders), -size))

        try:
            mark = weakref.ref(root, let_go)
        except TypeError:  # a scalar of NumPy, of some bytes
            return
        self._held[key] = holders, mark
        self.events.append((devices, size))

    def find_peaks(self) -> dict[int, int]:
        """Return the most bytes that each device held at once."""
        now: dict[int, int] = {}
        most: dict[int, int] = {}
        for devices, size in self.events:
            for device in devices:
                now[device] = now.get(device, 0) + size
                most[device] = max(most.get(device, 0), now[device])
        return most


MARKS = 256
"""So many are made to see what one costs."""


class EngineProfiler:
    """What an engine keeps open while a profile is; by default there is nothing to do.

    It is opened before the first run and closed after the last one.
    """

    def open(self) -> None:
        """Begin to record what an engine records beside its programs.

        Raises:
            BackendError: it cannot be, for instance as somebody else is recording.
        """

    def measure_mark(self) -> float:
        """Return the seconds that a mark costs within a run; NaN where that is not known."""
        recorder, segment = Recorder(), Segment("")
        start = perf_counter()
        for _ in range(MARKS):
            recorder.mark(segment)
        return (perf_counter() - start) / MARKS

    def close(self, recorders: Sequence[Recorder]) -> None:
        """End, and fill what was recorded into the recorders of the runs, in their order."""


__all__ = [
    "ArrayTally", "EngineProfiler", "MemoryUse", "Recorder", "Segment", "Span", "Tally",
    "segment_of",
]  # fmt: skip
