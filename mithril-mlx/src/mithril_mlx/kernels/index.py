"""Kernels of the ops that choose by integers.

A program that runs lazily cannot refuse an id that names no row: such rows are NaN (0 of integers),
and what is added there is dropped. With an offset the operand holds only a part of the rows, and
ids that lie elsewhere give zeros. Ids are compared as unsigned numbers, of which negative ones are
the largest, and nothing outside the rows is read.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mithril.spi import KernelRun, Shape, TensorType, Types, ops

from mithril_mlx.kernels.elementwise import number
from mithril_mlx.kernels.precision import accumulator
from mithril_mlx.kernels.shape import fill
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype

FEW = 1 << 18
"""Up to so many updates MLX adds along a dimension in a third of the time it takes for rows."""


@kernel(ops.Take)
def take(op: ops.Take, types: Types) -> KernelRun:
    """Rows copied out of the table."""
    table, ids = types[:2]
    (result,) = op.infer(types)
    nowhere = _nowhere(table)
    if not table.size or not ids.size:
        is_float = table.dtype.is_float and len(types) == 2
        return fill(math.nan if is_float else 0, result)
    if len(types) > 2:
        return _take_part(op, types)
    rows, counted, beside = table.shape[0], to_unsigned(ids), _beside(ids, result)
    if not table.dtype.is_float:
        return lambda table, ids: mx.where(
            beside(ids.astype(counted) < rows),
            mx.take(table, mx.minimum(ids.astype(counted), rows - 1), 0),
            nowhere,
        )
    nothing = number(-0.0, table.dtype)

    def run(table: Any, ids: Any) -> Any:
        ids = ids.astype(counted)
        rows_found = mx.take(table, mx.minimum(ids, rows - 1), 0)
        # To add a number to each row takes a third of the time of a choice for each row.
        return rows_found + beside(mx.where(ids < rows, nothing, nowhere))

    return run


def _take_part(op: ops.Take, types: Types) -> KernelRun:
    """Return the function for a part of the rows: zeros for the others."""
    table, ids = types[:2]
    (result,) = op.infer(types)
    rows, whole, counted, beside = table.shape[0], op.rows, to_unsigned(ids), _beside(ids, result)
    zero, nowhere = number(0, table.dtype), _nowhere(table)

    def run(table: Any, ids: Any, offset: Any) -> Any:
        ids = ids.astype(counted)
        local = ids - offset.astype(counted)
        found = mx.take(table, mx.minimum(local, rows - 1), 0)
        other = beside(mx.where(ids < whole, zero, nowhere)) if whole else zero
        return mx.where(beside(local < rows), found, other)

    return run


def _beside(ids: TensorType, result: TensorType) -> KernelRun:
    """Return the function that gives what belongs to ids a dimension for each of the result."""
    behind = result.rank - ids.rank
    if not behind:
        return lambda x: x
    shape = (*ids.shape, *(1,) * behind)
    return lambda x: mx.reshape(x, shape)


@kernel(ops.ScatterAdd)
def scatter_add(op: ops.ScatterAdd, types: Types) -> KernelRun:
    """Sums of the updates that go to the same row; what goes nowhere meets in a row of its own."""
    ids, updates = types[:2]
    (result,) = op.infer(types)
    dtype, accumulate, counted = (
        mlx_dtype(result.dtype),
        accumulator(result.dtype),
        to_unsigned(ids),
    )
    rows, count = op.rows, ids.size
    flat = (count, math.prod(result.shape[1:]))
    zero = mx.array(0, dtype=accumulate)
    if not updates.size or not result.size:
        return fill(0, result)
    add = add_along(0, (rows + 1, flat[1]), accumulate) if updates.size <= FEW else None

    def run(ids: Any, updates: Any, *offset: Any) -> Any:
        ids = ids.astype(counted)
        local = mx.minimum(ids - offset[0].astype(counted) if offset else ids, rows)
        updates = mx.reshape(updates, flat).astype(accumulate)
        if add:
            total = add(mx.broadcast_to(mx.reshape(local, (count, 1)), flat), updates)
        else:
            start = mx.broadcast_to(zero, (rows + 1, flat[1]))
            total = start.at[mx.reshape(local, (count,))].add(updates)
        return mx.reshape(total[:rows].astype(dtype), result.shape)

    return run


def add_along(axis: int, shape: Shape, dtype: mx.Dtype) -> KernelRun:
    """Return the function that adds updates to zeros of a shape, at indices along a dimension.

    MLX offers it only as the gradient of `take_along_axis`.
    """
    zeros = mx.broadcast_to(mx.array(0, dtype=dtype), shape)

    def run(indices: Any, updates: Any) -> Any:
        _, slopes = mx.vjp(lambda x: mx.take_along_axis(x, indices, axis), [zeros], [updates])
        return slopes[0]

    return run


@kernel(ops.OneHot)
def one_hot(op: ops.OneHot, types: Types) -> KernelRun:
    """1 at the place an id names."""
    counted, dtype, shape = to_unsigned(types[0]), mlx_dtype(op.dtype), (*types[0].shape, 1)
    places = mx.arange(op.classes, dtype=counted)

    def run(ids: Any, *offset: Any) -> Any:
        ids = ids.astype(counted)
        local = ids - offset[0].astype(counted) if offset else ids
        return mx.equal(mx.reshape(local, shape), places).astype(dtype)

    return run


@kernel(ops.Iota)
def iota(op: ops.Iota, types: Types) -> KernelRun:
    """Numbers that count along a dimension, made once."""
    size, dtype = op.shape[op.axis], mlx_dtype(op.dtype)
    line = (size,) + (1,) * (len(op.shape) - op.axis - 1)
    counted = mx.broadcast_to(mx.arange(size).astype(dtype).reshape(line), op.shape)
    if not types:
        return lambda: counted
    return lambda offset: counted + offset.astype(dtype)


def to_unsigned(ids: TensorType) -> mx.Dtype:
    """Return the dtype in which ids are compared."""
    return mx.uint64 if ids.dtype.itemsize == 8 else mx.uint32


def _nowhere(type: TensorType) -> mx.array:
    """Return what stands where an id names no row."""
    return number(math.nan if type.dtype.is_float else 0, type.dtype)
