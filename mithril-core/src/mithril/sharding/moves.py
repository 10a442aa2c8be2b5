"""Moves: the steps by which a value goes from one sharding to another.

Moves over one or several mesh axes:

    slice           replicated -> split          free: each device keeps its part
    to_partial      replicated -> partial        free: index 0 keeps the value, the others zero
    all_gather      split -> replicated          takes the minor-most axes of a dimension
    all_to_all      split(i) -> split(j)         likewise
    permute         another order of the axes of a dimension
    reduce_scatter  partial -> split
    all_reduce      partial -> replicated

`list_moves` has those that may lead to a goal, one axis at a time; `merge` joins neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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


def list_moves(here: Sharding, goal: Sharding, shape: Shape | None = None) -> Iterator[Move]:
    """Yield the moves worth trying; a free one that ends in its place is worth making at once.

    Args:
        here: where a value is.
        goal: where it shall go.
        shape: of the value, if parts of unequal size are refused; permutes need `can_permute`, too.
    """
    for move in _free_moves(here, goal, shape):
        yield move
        if move.kind == "to_partial" or _is_placed(move.after, goal, move.target_dimension):
            return
    for axis in here.mesh.names:
        held = here.dimension_of(axis)
        if held is not None:
            yield from _moves_of_split(here, goal, axis, held, shape)
        elif here.reduction_of(axis) != goal.reduction_of(axis):
            yield from _moves_of_partial(here, goal, axis, shape)
    for dimension, axes in enumerate(here.dims):
        if len(axes) < 2:
            continue
        ordered = _helpful_order(axes, dimension, goal)
        if ordered != axes:
            yield Move(Permute.name, ordered, here, _with_dim(here, dimension, ordered))


def can_permute(move: Move, shape: Shape) -> bool:
    """Return whether a move is no permute, or one of parts of equal size."""
    if move.kind != Permute.name:
        return True
    dimension = move.source_dimension
    return shape[dimension] % move.before.shards_along(dimension) == 0


def _free_moves(here: Sharding, goal: Sharding, shape: Shape | None) -> Iterator[Move]:
    for axis in here.mesh.names:
        if here.dimension_of(axis) is not None or here.reduction_of(axis):
            continue
        if _can_append(here, goal, axis, shape):
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
    here: Sharding, goal: Sharding, axis: str, held: int, shape: Shape | None
) -> Iterator[Move]:
    axes = here.dims[held]
    if axes[-1] != axis or _is_placed(here, goal, held):
        return  # only the minor-most axis can leave, and one that is in its place stays
    without = _with_dim(here, held, axes[:-1])
    yield Move(AllGather.name, (axis,), here, without)
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


def _moves_of_partial(
    here: Sharding, goal: Sharding, axis: str, shape: Shape | None
) -> Iterator[Move]:
    if not here.reduction_of(axis):
        return
    left = tuple(pending for pending in here.partial if pending[0] != axis)
    reduced = Sharding(here.mesh, here.dims, left)
    yield Move(AllReduce.name, (axis,), here, reduced)
    if _can_append(reduced, goal, axis, shape):
        yield Move(ReduceScatter.name, (axis,), here, _append(reduced, goal, axis))


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


def _with_partial(here: Sharding, axis: str, reduction: str) -> Sharding:
    pending = {**dict(here.partial), axis: reduction}
    ordered = tuple((name, pending[name]) for name in here.mesh.names if name in pending)
    return Sharding(here.mesh, here.dims, ordered)


def merge(moves: tuple[Move, ...]) -> tuple[Move, ...]:
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


__all__ = ["Move", "can_permute", "list_moves", "merge"]
