"""Kernels of the ops that move elements; most give views."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mithril.spi import KernelRun, TensorType, Types, ops

from mithril_mlx.kernels.elementwise import number
from mithril_mlx.kernels.table import kernel


def fill(value: object, type: TensorType) -> KernelRun:
    """Return the function that makes an array of one number, whatever the operands.

    Kernels take it where operands have no elements: there MLX's reductions may run for ever.
    """
    result = mx.broadcast_to(number(value, type.dtype), type.shape)
    return lambda *operands: result


@kernel(ops.Reshape)
def reshape(op: ops.Reshape, types: Types) -> KernelRun:
    """The elements in another shape."""
    shape, change = op.shape, mx.reshape
    return lambda x: change(x, shape)


@kernel(ops.Transpose)
def transpose(op: ops.Transpose, types: Types) -> KernelRun:
    """The dimensions in another order."""
    order, change = op.order, mx.transpose
    return lambda x: change(x, order)


@kernel(ops.Broadcast)
def broadcast(op: ops.Broadcast, types: Types) -> KernelRun:
    """The operand stretched to a shape."""
    shape, stretch = op.shape, mx.broadcast_to
    return lambda x: stretch(x, shape)


@kernel(ops.Slice)
def slice_(op: ops.Slice, types: Types) -> KernelRun:
    """A part with a step; what lies behind the last dimension that is cut goes unsaid."""
    bounds = zip(op.start, op.stop, op.step, types[0].shape, strict=True)
    index = tuple(
        slice(None) if (start, stop, step) == (0, size, 1) else slice(start, stop, step)
        for start, stop, step, size in bounds
    )
    while index and index[-1] == slice(None):
        index = index[:-1]
    return (lambda x: x[index]) if index else lambda x: x


@kernel(ops.Pad)
def pad(op: ops.Pad, types: Types) -> KernelRun:
    """Zeros before, after and between the elements."""
    zero = number(0, types[0].dtype)
    if not any(op.between):
        widths = list(zip(op.before, op.after, strict=True))
        return lambda x: mx.pad(x, widths, constant_values=zero)
    (result,) = op.infer(types)
    steps = zip(op.before, op.between, types[0].shape, strict=True)
    index = tuple(
        slice(before, before + max((size - 1) * (between + 1) + 1, 0), between + 1)
        for before, between, size in steps
    )

    def run(x: Any) -> Any:
        whole = mx.broadcast_to(zero, result.shape)
        whole[index] = x
        return whole

    return run


@kernel(ops.Concatenate)
def concatenate(op: ops.Concatenate, types: Types) -> KernelRun:
    """The operands one after another."""
    axis, join = op.axis, mx.concatenate
    return lambda *parts: join(list(parts), axis)


@kernel(ops.Flip)
def flip(op: ops.Flip, types: Types) -> KernelRun:
    """The elements from the other end."""
    steps = (-1 if axis in op.axes else 1 for axis in range(types[0].rank))
    index = tuple(slice(None, None, step) for step in steps)
    return lambda x: x[index]
