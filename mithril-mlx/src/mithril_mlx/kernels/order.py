"""Kernels of the ops along one dimension: order, picking by position, adding by position."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mithril.spi import KernelRun, TensorType, Types, ops

from mithril_mlx.kernels.elementwise import number
from mithril_mlx.kernels.index import add_along, to_unsigned
from mithril_mlx.kernels.precision import accumulator
from mithril_mlx.kernels.shape import fill
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype


@kernel(ops.Sort)
def sort(op: ops.Sort, types: Types) -> KernelRun:
    """Sorted rows, NaN last."""
    axis = op.axis
    if not op.descending:
        return lambda x: mx.sort(x, axis)
    turned = _negate(types[0])
    return lambda x: turned(mx.sort(turned(x), axis))


@kernel(ops.Argsort)
def argsort(op: ops.Argsort, types: Types) -> KernelRun:
    """Positions by a stable sort."""
    axis = op.axis
    if not op.descending:
        return lambda x: mx.argsort(x, axis).astype(mx.int32)
    turned = _negate(types[0])
    return lambda x: mx.argsort(turned(x), axis).astype(mx.int32)


@kernel(ops.TopK)
def top_k(op: ops.TopK, types: Types) -> KernelRun:
    """The first k of a stable descending sort."""
    axis, turned = op.axis, _negate(types[0])
    first = (*(slice(None),) * axis, slice(op.k))

    def run(x: Any) -> Any:
        positions = mx.argsort(turned(x), axis)[first]
        return mx.take_along_axis(x, positions, axis), positions.astype(mx.int32)

    return run


def _negate(type: TensorType) -> KernelRun:
    """Return the function that turns the order around, NaN excepted, and is its own inverse."""
    if type.dtype.is_float:
        return mx.negative
    return mx.bitwise_invert if type.dtype.is_integer else mx.logical_not


@kernel(ops.TakeAlong)
def take_along(op: ops.TakeAlong, types: Types) -> KernelRun:
    """Elements by position, row by row."""
    x, indices = types
    axis, size, counted = op.axis, x.shape[op.axis], to_unsigned(indices)
    nowhere = number(math.nan if x.dtype.is_float else 0, x.dtype)
    if not x.size or not indices.size:
        return fill(math.nan if x.dtype.is_float else 0, x.with_shape(indices.shape))

    def run(x: Any, indices: Any) -> Any:
        indices = indices.astype(counted)
        found = mx.take_along_axis(x, mx.minimum(indices, size - 1), axis)
        return mx.where(indices < size, found, nowhere)

    return run


@kernel(ops.ScatterAlong)
def scatter_along(op: ops.ScatterAlong, types: Types) -> KernelRun:
    """Sums of the updates that go to one place."""
    (result,) = op.infer(types)
    dtype, accumulate, counted = (
        mlx_dtype(result.dtype),
        accumulator(result.dtype),
        to_unsigned(types[0]),
    )
    size, zero = op.size, mx.array(0, dtype=accumulate)
    if not result.size or not types[0].size:
        return fill(0, result)
    add = add_along(op.axis, result.shape, accumulate)

    def run(indices: Any, updates: Any) -> Any:
        indices = indices.astype(counted)
        updates = mx.where(indices < size, updates.astype(accumulate), zero)
        return add(mx.minimum(indices, size - 1), updates).astype(dtype)

    return run
