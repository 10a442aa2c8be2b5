"""Moves: the steps by which a value goes from one sharding to another.

Moves over one or several mesh axes:

    slice           replicated -> split          free: each device keeps its part
    to_partial      replicated -> partial        free: index 0 keeps the value, the others zero
    all_gather      split -> replicated          takes the minor-most axes of a dimension
    all_to_all      split(i) -> split(j)         likewise
    permute         another order of the axes of a dimension
    reduce_scatter  partial -> split
    all_reduce      partial -> replicated

`list_moves` has those that may lead to a goal. Those that exchange data are of as many axes at once
as may go together; free ones are of one axis. `merge` joins neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mithril.mesh import Sharding
from mithril.ops.collective import AllGather, AllReduce, AllToAll, Permute, ReduceScatter
from mithril.types import Shape


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


def list_moves(here: Sharding, goal: Sharding, shape: Shape, pads: bool = True) -> Iterator[Move]:
    """Yield the moves worth trying; a slice that ends in its place is worth making at once.

    Zeros are added last, when a value lies as in the goal: other moves stay neighbours, and join.

    Args:
        here: where a value is.
        goal: where it shall go.
        shape: of the value.
        pads: whether parts may be of unequal size, but for those that are permuted.
    """
    divided = None if pads else shape
    if here.dims == goal.dims and set(here.partial) <= set(goal.partial):
        yield from _moves_to_partial(here, goal)
        return
    for move in _slices(here, goal, divided):
        yield move
        if _is_placed(move.after, goal, move.target_dimension):
            return
    for held, axes in enumerate(here.dims):
        if axes and axes != goal.dims[held][: len(axes)]:  # what is in its place stays
            yield from _moves_of_split(here, goal, held, divided)
    if here.partial:
        yield from _moves_of_partial(here, goal, divided)
    for dimension, axes in enumerate(here.dims):
        if len(axes) < 2 or shape[dimension] % here.shards_along(dimension):
            continue
        ordered = _helpful_order(axes, dimension, goal)
        if ordered != axes:
            yield Move(Permute.name, ordered, here, _with_dim(here, dimension, ordered))


def _moves_to_partial(here: Sharding, goal: Sharding) -> Iterator[Move]:
    for axis, reduction in goal.partial:
        if reduction == "sum" and not here.reduction_of(axis):  # zeros leave a sum as it is
            yield Move("to_partial", (axis,), here, _with_partial(here, axis, "sum"))


def _slices(here: Sharding, goal: Sharding, shape: Shape | None) -> Iterator[Move]:
    for axis in here.mesh.names:
        is_free = here.dimension_of(axis) is None and not here.reduction_of(axis)
        if is_free and _can_append(here, goal, axis, shape):
            yield Move("slice", (axis,), here, _append(here, goal, axis))


def _helpful_order(axes: tuple[str, ...], dimension: int, goal: Sharding) -> tuple[str, ...]:
    """Return the order with the axes that stay first, as in the goal, so that others can leave.

    Axes leave minor-most first, so those that go to one dimension stand in reverse order.
    """
    stay = tuple(axis for axis in goal.dims[dimension] if axis in axes)
    going = [axis for other in goal.dims for axis in reversed(other) if axis in axes]
    others = tuple(axis for axis in axes if axis not in going)
    return stay + others + tuple(axis for axis in going if axis not in stay)


def _moves_of_split(
    here: Sharding, goal: Sharding, held: int, shape: Shape | None
) -> Iterator[Move]:
    axes = here.dims[held]
    axis = axes[-1]  # none can leave before the minor-most
    for first in reversed(range(len(axes))):
        yield Move(AllGather.name, axes[first:], here, _with_dim(here, held, axes[:first]))
        if axes[:first] == goal.dims[held][:first]:
            break  # what is left is in its place
    without = _with_dim(here, held, axes[:-1])
    for first in range(len(axes) - 1):
        yield from _joint_all_to_all(here, goal, held, axes[first:], shape)
    if goal.dimension_of(axis) != held and _can_append(without, goal, axis, shape):
        yield Move(AllToAll.name, (axis,), here, _append(without, goal, axis))


def _joint_all_to_all(
    here: Sharding,
    goal: Sharding,
    held: int,
    axes: tuple[str, ...],
    shape: Shape | None,
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
    if shape is None or shape[target] % moved.shards_along(target) == 0:
        yield Move(AllToAll.name, axes, here, moved)


def _moves_of_partial(here: Sharding, goal: Sharding, shape: Shape | None) -> Iterator[Move]:
    pending = [pair for pair in here.partial if pair not in goal.partial]
    for kind in dict.fromkeys(reduction for _, reduction in pending):
        axes = tuple(axis for axis, reduction in pending if reduction == kind)
        for some in list_subsets(axes):
            yield Move(AllReduce.name, some, here, _without_partial(here, some))
        for dims in goal.dims:
            for some in list_subsets(tuple(axis for axis in dims if axis in axes)):
                scattered = _append_all(_without_partial(here, some), goal, some, shape)
                if scattered is not None:
                    yield Move(ReduceScatter.name, some, here, scattered)


def list_subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield all that is in some axes and keeps their order, but for nothing."""
    for count in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, count)


def _append_all(
    here: Sharding, goal: Sharding, axes: tuple[str, ...], shape: Shape | None
) -> Sharding | None:
    """Return what splits a dimension over some axes of the goal, too; None if it may not."""
    for axis in axes:
        if not _can_append(here, goal, axis, shape):
            return None
        here = _append(here, goal, axis)
    return here


def _can_append(here: Sharding, goal: Sharding, axis: str, shape: Shape | None) -> bool:
    """Whether the goal splits a dimension over the axis, and what is left of it may be split."""
    dimension = goal.dimension_of(axis)
    if dimension is None:
        return False
    parts = here.shards_along(dimension) * here.mesh.sizes[axis]
    return shape is None or shape[dimension] % parts == 0


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


def _without_partial(here: Sharding, axes: tuple[str, ...]) -> Sharding:
    left = tuple(pending for pending in here.partial if pending[0] not in axes)
    return Sharding(here.mesh, here.dims, left)


def _with_partial(here: Sharding, axis: str, reduction: str) -> Sharding:
    pending = {**dict(here.partial), axis: reduction}
    ordered = tuple((name, pending[name]) for name in here.mesh.names if name in pending)
    return Sharding(here.mesh, here.dims, ordered)


def merge(moves: tuple[Move, ...]) -> tuple[Move, ...]:
    """Join neighbouring moves of one kind into one over several axes.

    Collectives, too, even where one after the other is predicted to take less: whether a collective
    is carried out level by level is decided afterwards, and libraries do so by themselves.
    """
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
        return second.axes + first.axes  # the second took the next major axes
    if first.kind in ("slice", ReduceScatter.name):
        same_dimension = first.target_dimension == second.target_dimension
        return first.axes + second.axes if same_dimension and _reduce_alike(first, second) else None
    if first.kind in (AllReduce.name, "to_partial") and _reduce_alike(first, second):
        names = first.axes + second.axes
        return tuple(name for name in first.before.mesh.names if name in names)
    return None


def _reduce_alike(first: Move, second: Move) -> bool:
    """Whether what two moves reduce, if anything, is reduced in one way."""
    return (
        len({move.before.reduction_of(axis) for move in (first, second) for axis in move.axes}) == 1
    )


def _dimension(sharding: Sharding, axis: str) -> int:
    dimension = sharding.dimension_of(axis)
    assert dimension is not None, "a move is asked for a dimension its axis is not in"
    return dimension


__all__ = ["Move", "list_moves", "list_subsets", "merge"]
