"""Timetable: the stages of a plan in the order in which they run, and what is sent between them.

A plan is a program of programs: a `Run` runs the program of a stage on values in
numbered slots, a `Send` brings a value from the devices that made it to those that need it. The
steps stand in one order for all devices. A device that keeps to it, leaving out what is not its
own, never waits for ever: what it waits for was started by an earlier step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import itemgetter

from mithril.ir import Cause, Phase
from mithril.mesh import Box, Mesh, Sharding
from mithril.mesh.sharding import edges
from mithril.plan.program import Port
from mithril.plan.schedule import Action, Schedule
from mithril.types import Shape, TensorType

Edges = tuple[tuple[int, int], ...]
"""Where a box starts and stops in each dimension."""
KEPT = 256
"""Of so many ways to send something it is kept which device sends what."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a value that one device gives another, or keeps.

    Args:
        sender: flat index of the device that has it, in the whole mesh.
        receiver: flat index of the device that needs it.
        held: where it lies in the array of the sender.
        place: where it goes in the array of the receiver.
    """

    sender: int
    receiver: int
    held: Box
    place: Box

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(part.stop - part.start for part in self.place)


@dataclass(frozen=True)
class Transfer:
    """A value that some devices make and others need.

    Args:
        type: of the whole value; in a pipeline, of one micro-batch of it.
        source: how it lies where it is made; the mesh says on which devices.
        target: how it has to lie where it is needed.
        cause: why it is there.
        phase: forward or backward.
        scope: layer path of the value's producer.
        place: the user's line, as `file:line`, or empty.
        goal: of what arrives, if that is a part of the value, or a stack it is put into.
        offset: where in the value's leading dimension the one of the goal begins.
    """

    type: TensorType
    source: Sharding
    target: Sharding
    cause: Cause
    phase: Phase = Phase.forward
    scope: str = ""
    place: str = ""
    goal: TensorType | None = None
    offset: int = 0

    @property
    def line(self) -> str:
        """The user's line, as `file:line`, or empty."""
        return self.place

    @property
    def arriving(self) -> TensorType:
        """The type of what arrives."""
        return self.goal or self.type

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """What goes from where to where; what a device has already it takes from itself."""
        shape, arriving = self.type.shape, self.arriving.shape
        return _list_chunks(shape, self.source, self.target, arriving, self.offset)

    @cached_property
    def devices(self) -> frozenset[int]:
        """Those that send something or are sent something: flat indices in the whole mesh."""
        crossing = (chunk for chunk in self.chunks if chunk.sender != chunk.receiver)
        return frozenset(device for chunk in crossing for device in (chunk.sender, chunk.receiver))

    @cached_property
    def bytes(self) -> int:
        """The most bytes one device gets from others."""
        sizes: Counter[int] = Counter()
        for chunk in self.chunks:
            if chunk.sender != chunk.receiver:
                sizes[chunk.receiver] += chunk.size * self.type.dtype.itemsize
        return max(sizes.values(), default=0)


@dataclass(frozen=True, slots=True)
class Run:
    """A stage's program run once.

    Args:
        stage: which, by its number in the plan.
        inputs: the slots of its inputs.
        outputs: the slots its outputs go to.
        action: what it is in the schedule of a pipeline.
    """

    stage: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    action: Action | None = None

    @property
    def takes(self) -> tuple[int, ...]:
        """The slots it reads."""
        return self.inputs

    @property
    def makes(self) -> tuple[int, ...]:
        """The slots it fills."""
        return self.outputs

    @property
    def slots(self) -> tuple[int, ...]:
        """All slots it touches."""
        return (*self.inputs, *self.outputs)


@dataclass(frozen=True, slots=True)
class Send:
    """A transfer carried out once.

    Args:
        transfer: which, by its number in the timetable.
        source: the slot of the value where it is made.
        target: the slot of the value where it is needed.
        action: the action of the schedule that made the value.
    """

    transfer: int
    source: int
    target: int
    action: Action | None = None

    @property
    def takes(self) -> tuple[int, ...]:
        """The slot it reads."""
        return (self.source,)

    @property
    def makes(self) -> tuple[int, ...]:
        """The slot it fills."""
        return (self.target,)

    @property
    def slots(self) -> tuple[int, ...]:
        """All slots it touches."""
        return (self.source, self.target)


@dataclass(frozen=True, slots=True)
class Index:
    """The number of a micro-batch as an input of stages: an int32 scalar.

    Args:
        slot: where it lies.
        mesh: on which devices.
        value: the number.
    """

    slot: int
    mesh: Mesh
    value: int


@dataclass(frozen=True, eq=False)
class Timetable:
    """What runs when; see the module's text.

    Args:
        inputs: of the whole plan, and `given` their slots.
        outputs: of the whole plan, and `made` their slots.
        steps: in order.
        transfers: what sends refer to.
        indices: numbers of micro-batches.
        schedule: of a pipeline.
    """

    inputs: tuple[Port, ...]
    given: tuple[int, ...]
    outputs: tuple[Port, ...]
    made: tuple[int, ...]
    steps: tuple[Run | Send, ...]
    transfers: tuple[Transfer, ...]
    indices: tuple[Index, ...] = ()
    schedule: Schedule | None = None

    @property
    def runs_once(self) -> bool:
        """Whether one run is all there is: it takes every input and makes every output."""
        return self.steps == (Run(0, self.given, self.made),)

    def last_uses(self) -> list[list[int]]:
        """Return for each step the slots that nobody needs after it; inputs and outputs live on."""
        kept = {*self.given, *self.made, *(index.slot for index in self.indices)}
        dead: list[list[int]] = []
        for step in reversed(self.steps):
            used = step.slots
            dead.append([slot for slot in dict.fromkeys(used) if slot not in kept])
            kept.update(used)
        return dead[::-1]

    def find_donatable(self, stage: int) -> tuple[int, ...]:
        """Return the inputs of a stage that nobody else reads: an output may take their memory.

        That is so of sums that grow from run to run.
        """
        return self._donatable.get(stage, ())

    @cached_property
    def _donatable(self) -> Mapping[int, tuple[int, ...]]:
        """The inputs by stage that nobody else reads."""
        runs: dict[int, list[Run]] = {}
        for step in self.steps:
            if isinstance(step, Run):
                runs.setdefault(step.stage, []).append(step)
        made = {slot for of in runs.values() for run in of for slot in run.outputs}
        reads = Counter(slot for step in self.steps for slot in step.slots)
        own = {slot for slot in made - set(self.made) if reads[slot] == 2}
        return {
            stage: tuple(
                position
                for position in range(len(of[0].inputs))
                if all(run.inputs[position] in own for run in of)
            )
            for stage, of in runs.items()
        }

    def times(self) -> Counter[int]:
        """Return how often each stage runs."""
        return Counter(step.stage for step in self.steps if isinstance(step, Run))


def run_once(inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> Timetable:
    """Return the timetable of a plan whose one stage runs once.

    Args:
        inputs: of the stage, and of the plan.
        outputs: likewise.
    """
    given = tuple(range(len(inputs)))
    made = tuple(range(len(inputs), len(inputs) + len(outputs)))
    return Timetable(inputs, given, outputs, made, (Run(0, given, made),), ())


@lru_cache(maxsize=KEPT)
def _list_chunks(
    shape: Shape, source: Sharding, target: Sharding, arriving: Shape, offset: int
) -> tuple[Chunk, ...]:
    """Return what goes from where to where; every micro-batch, and every sum, sends alike."""
    return tuple(_chunks(shape, source, target, arriving, offset))


def _chunks(
    shape: Shape, source: Sharding, target: Sharding, arriving: Shape, offset: int
) -> Iterator[Chunk]:
    holders: dict[Edges, list[int]] = {}  # flat indices in the whole mesh
    for device in range(source.mesh.size):
        held = edges(source.box(device, shape))
        holders.setdefault(held, []).append(source.mesh.in_whole(device))
    there = {held: frozenset(devices) for held, devices in holders.items()}
    grid = [sorted({held[d] for held in holders}) for d in range(len(shape))]
    rank = {held: place for place, held in enumerate(holders)}
    for number in range(target.mesh.size):
        receiver = target.mesh.in_whole(number)
        needed = _shift(edges(target.box(number, arriving)), offset)
        for held in sorted(_sources(rank, grid, needed), key=rank.__getitem__):
            both = tuple(
                (max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, needed, strict=True)
            )
            if all(start < stop for start, stop in both):
                devices = holders[held]
                sender = receiver if receiver in there[held] else devices[number % len(devices)]
                yield Chunk(sender, receiver, _within(both, held), _within(both, needed))


def _shift(box: Edges, offset: int) -> Edges:
    """Return a box in the coordinates of the value that it is a part of."""
    if not offset:
        return box
    (start, stop), *rest = box
    return ((start + offset, stop + offset), *rest)


def _sources(
    boxes: Container[Edges], grid: Sequence[Sequence[tuple[int, int]]], needed: Edges
) -> list[Edges]:
    """Return the boxes that make up what is needed.

    Args:
        boxes: of one sharding: equal, or with nothing in common along some dimension.
        grid: where they start and stop in each dimension, in order.
        needed: a box.
    """
    if needed in boxes:
        return [needed]
    meeting = [
        parts[bisect_right(parts, start, key=_stop) : bisect_left(parts, stop, key=_start)]
        for parts, (start, stop) in zip(grid, needed, strict=True)
    ]
    return [box for box in product(*meeting) if box in boxes]


_start, _stop = itemgetter(0), itemgetter(1)


def _within(part: Edges, box: Edges) -> Box:
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(part, box, strict=True))
