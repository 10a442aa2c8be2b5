"""Shared kernels of the ops that move elements: reshapes, slices, padding, parts of shards."""

from __future__ import annotations

from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace
from mithril.engine.standard.table import kernel


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
