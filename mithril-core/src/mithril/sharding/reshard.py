"""The cheapest way from one sharding of a value to another, as a list of moves.

Moves over one or several mesh axes:

    slice           replicated -> split          free: each device keeps its part
    to_partial      replicated -> partial        free: index 0 keeps the value, the others zero
    all_gather      split -> replicated          takes the minor-most axes of a dimension
    all_to_all      split(i) -> split(j)         likewise
    permute         another order of the axes of a dimension
    reduce_scatter  partial -> split
    all_reduce      partial -> replicated

The search is Dijkstra's over shardings, priced by bytes moved per device; neighbouring moves of one
kind are then joined. A plan asks for the paths between all shardings that a value may have, which
meet in the same few in between: what can be done there, and its price, is found once. Where sizes
do not divide, parts travel with their padding; a permute needs equal parts.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mithril.cost import Hardware, collective_seconds, describe_emulation
from mithril.errors import PlanError
from mithril.mesh import MICRO, Mesh, Sharding
from mithril.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Permute,
    ReduceScatter,
    is_narrow_sum,
)
from mithril.types import DType, Shape, TensorType

PICOSECONDS = 1e12
WAIT = 1.0
"""The price in seconds of having all micro-batches of a pipeline wait for one another."""


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a reshard.

    Args:
        kind: one of the moves in the module's text.
        axes: mesh axes it takes, major first.
        before: sharding it starts from.
        after: sharding it ends in.
    """

    kind: str
    axes: tuple[str, ...]
    before: Sharding
    after: Sharding

    @property
    def is_collective(self) -> bool:
        """Whether devices exchange data."""
        return self.kind not in ("slice", "to_partial")

    @property
    def source_dimension(self) -> int:
        """The dimension the axes leave."""
        return _dimension(self.before, self.axes[0])

    @property
    def target_dimension(self) -> int:
        """The dimension the axes go to."""
        return _dimension(self.after, self.axes[0])


@dataclass(frozen=True, slots=True)
class Path:
    """Moves from one sharding to another, their price in picoseconds, and how many exchange."""

    moves: tuple[Move, ...]
    price: int
    collectives: int


Step = tuple[int, int, int, Move]
"""A move in a search: its price's number, whether it is a collective, its end's number, itself."""
Trail = tuple[Move, "Trail"] | None
"""The moves made so far, the last one first."""
PriceKey = tuple[object, ...]
"""What the time of a move depends on, beside the type."""
REFUSED = -1
"""The price of a move that may not be made."""


@dataclass(slots=True)
class _Steps:
    """The shardings on the way to one goal, by number, and the steps from each, found once."""

    numbers: dict[Sharding, int] = field(default_factory=dict)
    shardings: list[Sharding] = field(default_factory=list)
    known: dict[int, tuple[Step, ...]] = field(default_factory=dict)

    def number(self, sharding: Sharding) -> int:
        """Return the number of a sharding."""
        number = self.numbers.setdefault(sharding, len(self.shardings))
        if number == len(self.shardings):
            self.shardings.append(sharding)
        return number


class Resharder:
    """Finds and prices reshard paths on one mesh with one hardware profile.

    Args:
        mesh: the devices.
        hardware: the profile.
        pads: whether a dimension may be split that does not divide.
        refuses: whether a collective of some kind and bytes may not occur; None if all may.
    """

    def __init__(
        self,
        mesh: Mesh,
        hardware: Hardware,
        pads: bool = True,
        refuses: Callable[[str, int], bool] | None = None,
    ) -> None:
        self._mesh = mesh
        self.hardware = hardware
        self._refuses = refuses
        self._pads = pads
        self._paths: dict[tuple[Sharding, Sharding, TensorType], Path] = {}
        self._steps: dict[tuple[Sharding, Shape | None], _Steps] = {}
        self._seconds: dict[tuple[Move, TensorType], float] = {}
        self._numbers: dict[PriceKey, int] = {}
        self._prices: dict[TensorType, dict[int, int]] = {}
        self._known_seconds: dict[TensorType, dict[int, float]] = {}
        self._merged: dict[tuple[int, ...], tuple[tuple[Move, ...], tuple[int, ...]]] = {}

    def path(self, start: Sharding, goal: Sharding, type: TensorType) -> Path:
        """Return the cheapest path.

        Raises:
            PlanError: there is none (the goal is partial in another reduction, say).
        """
        key = (start, goal, type)
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = self._search(start, goal, type)
        return found

    def find_path(self, start: Sharding, goal: Sharding, type: TensorType) -> Path | None:
        """Return the cheapest path, None if there is none without what is refused.

        Raises:
            PlanError: there would be none with that, either.
        """
        try:
            return self.path(start, goal, type)
        except PlanError:
            if self._refuses is None:
                raise
            return None

    def refuses(self, kind: str, nbytes: int) -> bool:
        """Return whether a collective may not occur."""
        return self._refuses is not None and self._refuses(kind, nbytes)

    def move_bytes(self, move: Move, type: TensorType) -> int:
        """Return the bytes of a collective move with padding, as `Collective.bytes` counts them."""
        type = self._find_exchanged(move, type)
        if move.kind == AllGather.name:
            return local_bytes(move.before, type) * self._mesh.product(move.axes)
        if move.kind == ReduceScatter.name:
            return local_bytes(move.after, type) * self._mesh.product(move.axes)
        if move.kind == AllToAll.name:
            held, left = (s.local_shape(type.shape) for s in (move.before, move.after))
            split = move.target_dimension
            cut = left[split] * self._mesh.product(move.axes)
            sizes = (cut if i == split else size for i, size in enumerate(held))
            return math.prod(sizes) * type.dtype.itemsize
        return local_bytes(move.before, type)

    def _find_exchanged(self, move: Move, type: TensorType) -> TensorType:
        """Return the type in which a move is carried out: see `partition/widen_sums.py`."""
        sums = (AllReduce.name, ReduceScatter.name)
        if not self.hardware.execution.adds_narrow or move.kind not in sums:
            return type
        reduction = move.before.reduction_of(move.axes[0]) or "sum"
        is_narrow = MICRO not in move.axes and is_narrow_sum(reduction, type.dtype)
        return TensorType(type.shape, DType.float32) if is_narrow else type

    def seconds(self, move: Move, type: TensorType) -> float:
        """Return the predicted seconds of a move."""
        if not move.is_collective:
            return 0.0
        if (move, type) not in self._seconds:
            self._seconds[move, type] = self._price(move, type)
        return self._seconds[move, type]

    def _price(self, move: Move, type: TensorType) -> float:
        # A sum over micro-batches grows by itself; for anything else over time they all must wait.
        waits = WAIT if MICRO in move.axes and move.kind != AllReduce.name else 0.0
        axes = _axes_of_devices(move)
        if self._mesh.product(axes) == 1:
            return waits
        return waits + self.collective_seconds(move.kind, self.move_bytes(move, type), axes)

    def describe_emulation(self, move: Move, type: TensorType) -> str:
        """Return in words what is issued instead of a collective move; empty if it is itself."""
        nbytes, axes = self.move_bytes(move, type), _axes_of_devices(move)
        return describe_emulation(move.kind, nbytes, axes, self._mesh, self.hardware)

    def collective_seconds(self, kind: str, nbytes: int, axes: tuple[str, ...]) -> float:
        """Return the predicted seconds of a collective over some axes of the mesh."""
        return collective_seconds(kind, nbytes, axes, self._mesh, self.hardware)

    def _search(self, start: Sharding, goal: Sharding, type: TensorType) -> Path:
        # Where all sizes divide, the moves are the same for every shape.
        is_even = not any(size % self._mesh.size for size in type.shape)
        steps = self._steps.setdefault((goal, None if is_even else type.shape), _Steps())
        prices = self._prices.setdefault(type, {})
        order = itertools.count()  # ties go to the path found first
        end = steps.number(goal)
        queue: list[tuple[int, int, int, int, Trail]]
        queue = [(0, 0, next(order), steps.number(start), None)]
        done: set[int] = set()
        reached = (math.inf, 0)  # what is no better would be looked at after the goal
        while queue:
            price, count, _, here, trail = heapq.heappop(queue)
            if here == end:
                return self._finish(trail, type, is_even)
            if here in done:
                continue
            done.add(here)
            if here not in steps.known:
                steps.known[here] = self._find_steps(here, steps, goal, type, is_even)
            for number, is_collective, after, move in steps.known[here]:
                if after in done:
                    continue
                if number not in prices:
                    prices[number] = self._price_step(move, type)
                cost = price + prices[number], count + is_collective
                if prices[number] != REFUSED and cost < reached:
                    heapq.heappush(queue, (*cost, next(order), after, (move, trail)))
                    if after == end:
                        reached = cost
        raise PlanError(f"cannot reshard {type} from {start.describe()} to {goal.describe()}")

    def _find_steps(
        self, here: int, steps: _Steps, goal: Sharding, type: TensorType, is_even: bool
    ) -> tuple[Step, ...]:
        return tuple(
            (self._number(move, is_even), int(move.is_collective), steps.number(move.after), move)
            for move in _moves(steps.shardings[here], goal, type, self._pads)
        )

    def _number(self, move: Move, is_even: bool) -> int:
        """Return a number that moves share that take the same time for each type."""
        key: PriceKey = (move,)
        if not move.is_collective:
            key = ()
        elif is_even:  # then only how many parts there are makes a difference
            parts = self._mesh.product(move.before.split_axes)
            key = (move.kind, move.axes, parts, move.before.reduction_of(move.axes[0]))
        return self._numbers.setdefault(key, len(self._numbers))

    def _price_step(self, move: Move, type: TensorType) -> int:
        if move.is_collective and self.refuses(move.kind, self.move_bytes(move, type)):
            return REFUSED
        return round(self.seconds(move, type) * PICOSECONDS)

    def _finish(self, trail: Trail, type: TensorType, is_even: bool) -> Path:
        moves: list[Move] = []
        while trail:
            move, trail = trail
            moves.append(move)
        key = tuple(map(id, moves))  # the steps keep them
        if key not in self._merged:
            merged = _merge(tuple(reversed(moves)))
            self._merged[key] = merged, tuple(self._number(move, is_even) for move in merged)
        merged, numbers = self._merged[key]
        known = self._known_seconds.setdefault(type, {})
        seconds = 0.0
        for move, number in zip(merged, numbers, strict=True):
            if number not in known:
                known[number] = self.seconds(move, type)
            seconds += known[number]
        collectives = sum(move.is_collective for move in merged)
        return Path(merged, round(seconds * PICOSECONDS), collectives)


def _axes_of_devices(move: Move) -> tuple[str, ...]:
    """Return the axes over which devices exchange data: micro-batches are of one device."""
    return tuple(axis for axis in move.axes if axis != MICRO)


def local_bytes(sharding: Sharding, type: TensorType) -> int:
    """Return the bytes one device holds of a value."""
    return math.prod(sharding.local_shape(type.shape)) * type.dtype.itemsize


def _moves(here: Sharding, goal: Sharding, type: TensorType, pads: bool) -> Iterator[Move]:
    """Yield the moves worth trying; a free one that ends in its place is worth making at once."""
    for move in _free_moves(here, goal, type, pads):
        yield move
        if move.kind == "to_partial" or _is_placed(move.after, goal, move.target_dimension):
            return
    for axis in here.mesh.names:
        held = here.dimension_of(axis)
        if held is not None:
            yield from _moves_of_split(here, goal, axis, held, type, pads)
        elif here.reduction_of(axis) != goal.reduction_of(axis):
            yield from _moves_of_partial(here, goal, axis, type, pads)
    for dimension, axes in enumerate(here.dims):
        if len(axes) < 2:
            continue
        ordered = _helpful_order(axes, dimension, goal)
        if ordered != axes and type.shape[dimension] % here.shards_along(dimension) == 0:
            yield Move(Permute.name, ordered, here, _with_dim(here, dimension, ordered))


def _free_moves(here: Sharding, goal: Sharding, type: TensorType, pads: bool) -> Iterator[Move]:
    for axis in here.mesh.names:
        if here.dimension_of(axis) is not None or here.reduction_of(axis):
            continue
        if _can_append(here, goal, axis, type, pads):
            yield Move("slice", (axis,), here, _append(here, goal, axis))
        elif goal.reduction_of(axis) == "sum":  # zeros elsewhere leave a sum as it is
            yield Move("to_partial", (axis,), here, _with_partial(here, axis, "sum"))


def _helpful_order(axes: tuple[str, ...], dimension: int, goal: Sharding) -> tuple[str, ...]:
    """Return the order with the axes that stay first, as in the goal, so that others can leave.

    Axes leave minor-most first, so those that go to one dimension stand in reverse order.
    """
    stay = tuple(axis for axis in goal.dims[dimension] if axis in axes)
    going = [axis for other in goal.dims for axis in reversed(other) if axis in axes]
    others = tuple(axis for axis in axes if axis not in going)
    return stay + others + tuple(axis for axis in going if axis not in stay)


def _moves_of_split(
    here: Sharding, goal: Sharding, axis: str, held: int, type: TensorType, pads: bool
) -> Iterator[Move]:
    axes = here.dims[held]
    if axes[-1] != axis or _is_placed(here, goal, held):
        return  # only the minor-most axis can leave, and one that is in its place stays
    without = _with_dim(here, held, axes[:-1])
    yield Move(AllGather.name, (axis,), here, without)
    for first in range(len(axes) - 1):
        yield from _joint_all_to_all(here, goal, held, axes[first:], type, pads)
    if goal.dimension_of(axis) != held and _can_append(without, goal, axis, type, pads):
        yield Move(AllToAll.name, (axis,), here, _append(without, goal, axis))


def _joint_all_to_all(
    here: Sharding,
    goal: Sharding,
    held: int,
    axes: tuple[str, ...],
    type: TensorType,
    pads: bool,
) -> Iterator[Move]:
    """Yield the move of several minor axes at once, where the goal has them in the same order."""
    target = goal.dimension_of(axes[0])
    if target is None or target == held:
        return
    before = here.dims[target]
    after = (*before, *axes)
    if goal.dims[target][: len(after)] != after:
        return
    moved = _with_dim(here, held, here.dims[held][: -len(axes)])
    moved = _with_dim(moved, target, after)
    if pads or type.shape[target] % moved.shards_along(target) == 0:
        yield Move(AllToAll.name, axes, here, moved)


def _moves_of_partial(
    here: Sharding, goal: Sharding, axis: str, type: TensorType, pads: bool
) -> Iterator[Move]:
    if not here.reduction_of(axis):
        return
    left = tuple(pending for pending in here.partial if pending[0] != axis)
    reduced = Sharding(here.mesh, here.dims, left)
    yield Move(AllReduce.name, (axis,), here, reduced)
    if _can_append(reduced, goal, axis, type, pads):
        yield Move(ReduceScatter.name, (axis,), here, _append(reduced, goal, axis))


def _can_append(here: Sharding, goal: Sharding, axis: str, type: TensorType, pads: bool) -> bool:
    """Whether the goal splits a dimension over the axis, and what is left of it may be split."""
    dimension = goal.dimension_of(axis)
    if dimension is None:
        return False
    parts = here.shards_along(dimension) * here.mesh.sizes[axis]
    return pads or type.shape[dimension] % parts == 0


def _is_placed(here: Sharding, goal: Sharding, dimension: int) -> bool:
    """Whether a dimension's axes are the first ones it has in the goal, in that order."""
    axes = here.dims[dimension]
    return axes == goal.dims[dimension][: len(axes)]


def _append(here: Sharding, goal: Sharding, axis: str) -> Sharding:
    dimension = _dimension(goal, axis)
    return _with_dim(here, dimension, (*here.dims[dimension], axis))


def _with_dim(here: Sharding, dimension: int, axes: tuple[str, ...]) -> Sharding:
    dims = (*here.dims[:dimension], axes, *here.dims[dimension + 1 :])
    return Sharding(here.mesh, dims, here.partial)


def _with_partial(here: Sharding, axis: str, reduction: str) -> Sharding:
    pending = {**dict(here.partial), axis: reduction}
    ordered = tuple((name, pending[name]) for name in here.mesh.names if name in pending)
    return Sharding(here.mesh, here.dims, ordered)


def _merge(moves: tuple[Move, ...]) -> tuple[Move, ...]:
    """Join neighbouring moves of one kind into one over several axes."""
    if all(first.kind != second.kind for first, second in itertools.pairwise(moves)):
        return moves
    merged: list[Move] = []
    for move in moves:
        last = merged[-1] if merged else None
        axes = _joint_axes(last, move) if last else None
        if last and axes:
            merged[-1] = Move(move.kind, axes, last.before, move.after)
        else:
            merged.append(move)
    return tuple(merged)


def _joint_axes(first: Move, second: Move) -> tuple[str, ...] | None:
    if first.kind != second.kind:
        return None
    if first.kind == AllGather.name and first.source_dimension == second.source_dimension:
        return second.axes + first.axes  # the second took the next major axis
    if first.kind in ("slice", ReduceScatter.name):
        same_dimension = first.target_dimension == second.target_dimension
        return first.axes + second.axes if same_dimension else None
    if first.kind in (AllReduce.name, "to_partial"):
        pending = first.before if first.kind == AllReduce.name else second.after
        kinds = {pending.reduction_of(axis) for axis in first.axes + second.axes}
        names = first.axes + second.axes
        in_order = tuple(name for name in first.before.mesh.names if name in names)
        return in_order if len(kinds) == 1 else None
    return None


def _dimension(sharding: Sharding, axis: str) -> int:
    dimension = sharding.dimension_of(axis)
    assert dimension is not None, "a move is asked for a dimension its axis is not in"
    return dimension
