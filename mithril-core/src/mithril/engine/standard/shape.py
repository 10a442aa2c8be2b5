"""Shared kernels of the ops that move elements: reshapes, slices, padding, parts of shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in
from mithril.engine.standard.table import kernel
from mithril.types import DType


@kernel(ops.Reshape)
def reshape(op: ops.Reshape, types: Types, xp: ArrayNamespace) -> Run:
    """A view where the library has it."""
    shape = op.shape
    return lambda x: xp.reshape(x, shape)


@kernel(ops.Transpose)
def transpose(op: ops.Transpose, types: Types, xp: ArrayNamespace) -> Run:
    """A view where the library has it."""
    order = op.order
    return lambda x: xp.permute_dims(x, order)


@kernel(ops.Broadcast)
def broadcast(op: ops.Broadcast, types: Types, xp: ArrayNamespace) -> Run:
    """A view where the library has it."""
    shape = op.shape
    return lambda x: xp.broadcast_to(x, shape)


@kernel(ops.Slice)
def slice_(op: ops.Slice, types: Types, xp: ArrayNamespace) -> Run:
    """A view where the library has it."""
    index = tuple(map(slice, op.start, op.stop, op.step))
    return lambda x: x[index]


@kernel(ops.Flip)
def flip(op: ops.Flip, types: Types, xp: ArrayNamespace) -> Run:
    """From the other end."""
    return lambda x: xp.flip(x, axis=op.axes)


@kernel(ops.Concatenate)
def concatenate(op: ops.Concatenate, types: Types, xp: ArrayNamespace) -> Run:
    """The operands one after another."""
    axis = op.axis
    return lambda *parts: xp.concat(parts, axis=axis)


@kernel(ops.Pad)
def pad(op: ops.Pad, types: Types, xp: ArrayNamespace) -> Run:
    """Zeros between the elements, then before and after them."""
    (result,) = op.infer(types)

    def run(x: Any) -> Any:
        for axis, (before, between) in enumerate(zip(op.before, op.between, strict=True)):
            x = spread(x, axis, before, between + 1, result.shape[axis], xp)
        return x

    return run


def spread(x: Any, axis: int, start: int, step: int, size: int, xp: ArrayNamespace) -> Any:
    """Return zeros of some size along a dimension, with elements at start, start + step, ….

    Args:
        x: the elements; what falls beyond the size is left out.
        axis: the dimension.
        start: where the first one goes.
        step: how far the next one is.
        size: of the result.
        xp: the array namespace.
    """
    if step > 1 and x.shape[axis]:
        zeros = xp.zeros_like(x)
        apart = xp.stack([x, *[zeros] * (step - 1)], axis=axis + 1)
        shape = (*x.shape[:axis], x.shape[axis] * step, *x.shape[axis + 1 :])
        x = _cut(xp.reshape(apart, shape), axis, 0, (shape[axis] - step) + 1)
    x = _cut(x, axis, 0, max(0, min(x.shape[axis], size - start)))
    ends = [start, size - start - x.shape[axis]]
    before, after = (_zeros_like(x, axis, max(0, count), xp) for count in ends)
    parts = [part for part in (before, x, after) if part.shape[axis]]
    return xp.concat(parts, axis=axis) if len(parts) > 1 else parts[0] if parts else x


def _zeros_like(x: Any, axis: int, count: int, xp: ArrayNamespace) -> Any:
    """Return zeros of x's shape but along one dimension."""
    return xp.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :]), dtype=x.dtype)


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(*(slice(None),) * axis, slice(start, stop), ...)]


@kernel(ops.TakeShard)
def take_shard(op: ops.TakeShard, types: Types, xp: ArrayNamespace) -> Run:
    """Part number `index`, which may be known only when the program runs."""
    size, axis = types[0].shape[op.dimension] // op.count, op.dimension

    def run(x: Any, index: Any) -> Any:
        start = xp.astype(index, dtype_in(xp, DType.int64), copy=False) * size
        return read_part(x, axis, start, size, xp)

    return run


@kernel(ops.KeepFirst)
def keep_first(op: ops.KeepFirst, types: Types, xp: ArrayNamespace) -> Run:
    """The operand on index 0, zeros elsewhere."""
    return lambda x, index: xp.where(index == 0, x, xp.zeros_like(x))


@kernel(ops.DynamicSlice)
def dynamic_slice(op: ops.DynamicSlice, types: Types, xp: ArrayNamespace) -> Run:
    """Elements taken along one dimension after the other."""
    shape = types[0].shape

    def run(x: Any, *starts: Any) -> Any:
        for axis, size, start in zip(op.axes, op.sizes, starts, strict=True):
            x = read_part(x, axis, _move_in(start, shape[axis] - size, xp), size, xp)
        return x

    return run


@kernel(ops.DynamicUpdateSlice)
def dynamic_update_slice(op: ops.DynamicUpdateSlice, types: Types, xp: ArrayNamespace) -> Run:
    """The update where an element lies in it, x elsewhere; x is not written into."""
    shape, update_shape = types[0].shape, types[1].shape

    def run(x: Any, update: Any, *starts: Any) -> Any:
        if 0 in update_shape:
            return x
        inside: Any = None
        for axis, start in zip(op.axes, starts, strict=True):
            size, whole = update_shape[axis], shape[axis]
            at = _count(whole, xp) - _move_in(start, whole - size, xp)
            here = _stand_along((at >= 0) & (at < size), axis, len(shape), xp)
            inside = here if inside is None else inside & here
            update = xp.take(update, _clip(at, size - 1, xp), axis=axis)
        return update if inside is None else xp.where(inside, update, x)

    return run


def read_part(x: Any, axis: int, start: Any, size: int, xp: ArrayNamespace) -> Any:
    """Return some elements along a dimension from a start, an integer array of rank 0."""
    return xp.take(x, start + _count(size, xp), axis=axis)


def _move_in(start: Any, last: int, xp: ArrayNamespace) -> Any:
    """Return a start that lies in 0 … last."""
    return _clip(xp.astype(start, dtype_in(xp, DType.int64), copy=False), last, xp)


def _clip(x: Any, last: int, xp: ArrayNamespace) -> Any:
    dtype = dtype_in(xp, DType.int64)
    return xp.minimum(xp.maximum(x, xp.asarray(0, dtype=dtype)), xp.asarray(last, dtype=dtype))


def _count(size: int, xp: ArrayNamespace) -> Any:
    return xp.arange(size, dtype=dtype_in(xp, DType.int64))


def _stand_along(x: Any, axis: int, rank: int, xp: ArrayNamespace) -> Any:
    """Return a row as an array of a rank that varies along one dimension."""
    shape: Sequence[int] = [1] * axis + [x.shape[0]] + [1] * (rank - axis - 1)
    return xp.reshape(x, tuple(shape))
