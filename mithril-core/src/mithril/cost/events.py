"""Events of a device: what it computes and communicates, from when to when.

A loop is simulated for one iteration and a stage for one micro-batch; events are kept like that,
and come into being one by one where somebody goes through them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

COMPUTE, COMMUNICATION = "compute", "communication"
SENT, RECEIVED = "send", "receive"
COPIES = "host copies"
"""The streams of a device: what is in one is done one after the other.

Kernels are in the first, collectives in the second. What goes to other stages, and what comes from
them, is in the other two: links carry data both ways at once. What goes to the host arena and back
is in a stream of its own where it is copied beside other work.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a device does without a break.

    Args:
        name: the ops of a kernel, or a collective and its axes.
        scope: the user's layer path.
        phase: forward or backward.
        stream: `compute`, `communication`, `send`, `receive` or `host copies`.
        start: seconds from the start of the step.
        end: likewise.
        kind: the op that makes the result, or the kind of the collective.
        axes: of the mesh that a collective goes over.
        bytes: read and written by a kernel; of a collective as plans count them.
        microbatch: for which one, in a pipeline.
    """

    name: str
    scope: str
    phase: str
    stream: str
    start: float
    end: float
    kind: str
    axes: tuple[str, ...] = ()
    bytes: int = 0
    microbatch: int | None = None

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.start

    def shift(self, by: float, microbatch: int | None = None, scale: float = 1.0) -> Event:
        """Return the same event at another time, for a micro-batch, `scale` times as long."""
        start, end = self.start * scale + by, self.end * scale + by
        return Event(
            self.name, self.scope, self.phase, self.stream, start, end, self.kind, self.axes,
            self.bytes, microbatch,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Iterations:
    """Events that come again and again.

    Args:
        items: those of the first iteration, and loops in it.
        period: seconds from one iteration to the next.
        count: how many iterations there are.
    """

    items: Sequence[Item]
    period: float
    count: int


Item: TypeAlias = Event | Iterations


@dataclass(frozen=True, slots=True, eq=False)
class Occurrence:
    """Events of a run of a program.

    Args:
        items: as if the run started at 0.
        start: when it does.
        microbatch: for which one it runs.
        scale: how many times as long everything takes.
    """

    items: Sequence[Item]
    start: float = 0.0
    microbatch: int | None = None
    scale: float = 1.0


class Events(Sequence[Event]):
    """The events of a device, those of a stream in order; see the module's text.

    Args:
        occurrences: in order.
    """

    def __init__(self, occurrences: Sequence[Occurrence]) -> None:
        self._occurrences = occurrences

    def __iter__(self) -> Iterator[Event]:
        for one in self._occurrences:
            yield from _unroll(one.items, one.start, one)

    def __len__(self) -> int:
        return sum(_count(one.items) for one in self._occurrences)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Event, ...]: ...

    def __getitem__(self, index: int | slice) -> Event | tuple[Event, ...]:
        return tuple(self)[index]

    def __repr__(self) -> str:
        return f"<{len(self)} events>"


def _unroll(items: Sequence[Item], shift: float, of: Occurrence) -> Iterator[Event]:
    for item in items:
        if isinstance(item, Event):
            yield item.shift(shift, of.microbatch, of.scale)
        else:
            for number in range(item.count):
                yield from _unroll(item.items, shift + number * item.period * of.scale, of)


def _count(items: Sequence[Item]) -> int:
    return sum(1 if isinstance(item, Event) else item.count * _count(item.items) for item in items)
