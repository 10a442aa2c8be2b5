"""Kernels of the reductions; 16-bit floats are added and multiplied up in float32."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mithril.spi import KernelRun, Shape, Types, ops

from mithril_mlx.kernels.precision import accumulator
from mithril_mlx.kernels.shape import fill
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype

_REDUCE: dict[type[Any], KernelRun] = {
    ops.Max: mx.max, ops.Min: mx.min, ops.AnyTrue: mx.any, ops.AllTrue: mx.all,
}  # fmt: skip
_OF_NOTHING: dict[type[Any], int] = {ops.AllTrue: 1, ops.Prod: 1}
"""What a reduction without terms gives, where that is not 0."""

MANY = 1 << 14
"""MLX adds one after another: more terms than these are added up in two steps, as NumPy would."""


@kernel(*_REDUCE)
def reduction(op: ops.Reduction, types: Types) -> KernelRun:
    """One of the reductions over some dimensions."""
    if not types[0].size:
        return _reduce_nothing(op, types)
    function, axes, keepdims = _REDUCE[type(op)], op.axes, op.keepdims
    return lambda x: function(x, axes, keepdims)


@kernel(ops.Sum)
def sum_(op: ops.Sum, types: Types) -> KernelRun:
    """A sum; in two steps where it has many terms."""
    (result,) = op.infer(types)
    axes, keepdims = op.axes, op.keepdims
    if result.dtype.is_float:
        return _accumulate(op, types, add_up(types[0].shape, axes, result.shape))
    return _accumulate(op, types, lambda x: mx.sum(x, axes, keepdims))


def add_up(sizes: Shape, axes: tuple[int, ...], shape: Shape) -> KernelRun:
    """Return the function that adds up floats along some dimensions.

    Args:
        sizes: of the operand.
        axes: the dimensions.
        shape: of the result.
    """
    steps, add = _steps(sizes, axes), mx.sum
    if steps is None:
        return lambda x: add(x, axes).reshape(shape)
    between, first, second = steps
    return lambda x: add(add(x.reshape(between), first), second).reshape(shape)


@kernel(ops.Prod)
def prod(op: ops.Prod, types: Types) -> KernelRun:
    """A product."""
    axes, keepdims = op.axes, op.keepdims
    return _accumulate(op, types, lambda x: mx.prod(x, axes, keepdims))


@kernel(ops.Cumsum, ops.Cumprod)
def cumulative(op: ops.Cumsum | ops.Cumprod, types: Types) -> KernelRun:
    """A running sum or product."""
    axis, is_reverse = op.axis, op.reverse
    function = mx.cumsum if isinstance(op, ops.Cumsum) else mx.cumprod
    return _accumulate(op, types, lambda x: function(x, axis, reverse=is_reverse))


@kernel(ops.Argmax, ops.Argmin)
def arg_extremum(op: ops.ArgExtremum, types: Types) -> KernelRun:
    """The index of the first extreme element."""
    if not types[0].size:
        return _reduce_nothing(op, types)
    find, axis = (mx.argmax if isinstance(op, ops.Argmax) else mx.argmin), op.axis
    return lambda x: find(x, axis).astype(mx.int32)


def _accumulate(op: Any, types: Types, run: KernelRun) -> KernelRun:
    """Return a function that runs in the dtype to accumulate in."""
    (result,) = op.infer(types)
    if not types[0].size:
        return _reduce_nothing(op, types)
    given, made, accumulate = (
        mlx_dtype(types[0].dtype),
        mlx_dtype(result.dtype),
        accumulator(result.dtype),
    )
    if given == made == accumulate:
        return run
    if made == accumulate:
        return lambda x: run(x.astype(accumulate))
    return lambda x: run(x.astype(accumulate)).astype(made)


def _reduce_nothing(op: Any, types: Types) -> KernelRun:
    """Return the function for an operand without elements."""
    (result,) = op.infer(types)
    return fill(_OF_NOTHING.get(type(op), 0), result)


def _steps(shape: Shape, axes: tuple[int, ...]) -> tuple[Shape, tuple[int, ...], int] | None:
    """Return a shape with the last of some dimensions in two, and what to add first and second.

    >>> _steps((4, 1 << 16), (0, 1))
    ((4, 256, 256), (0, 2), 0)
    >>> _steps((4, 100), (0, 1))
    """
    if math.prod(shape[axis] for axis in axes) <= MANY:
        return None
    axis = max(axes, key=lambda i: shape[i])
    parts = max(n for n in range(1, math.isqrt(shape[axis]) + 1) if shape[axis] % n == 0)
    between = (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :])
    others = [i + (i > axis) for i in axes if i != axis]
    first = tuple(sorted([*others, axis + 1]))
    return between, first, axis - sum(i < axis for i in others)
