"""Kernels of the ops that choose by integers.

Without an offset every id must name a row. With one, the operand holds only a part of the rows and
ids that lie elsewhere give zeros.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import index as ops
from mithril.ops.index import check_ids

# Up to this many rows, adding by a product with a one-hot matrix is faster than by sorting.
_MATMUL_ROWS = 192


@kernel(ops.Take)
def take(op: ops.Take, types: Types, xp: ModuleType) -> Run:
    """Rows copied out of the table."""
    rows, count = types[0].shape[0], types[1].size
    (result_type,) = op.infer(types)

    def whole(table: Any, ids: Any) -> Any:
        check_ids("take", ids, rows, xp)
        return table[ids]

    def part(table: Any, ids: Any, offset: Any) -> Any:
        if op.rows:
            check_ids("take", ids, op.rows, xp)
        # Indexing by a lone number would give a view of the table, and zeros would go into it.
        local, outside = _local(xp.reshape(ids, (count,)), offset, rows, xp)
        result = table[xp.where(outside, 0, local)]
        result[outside] = 0
        return xp.reshape(result, result_type.shape)

    return whole if len(types) == 2 else part


@kernel(ops.ScatterAdd)
def scatter_add(op: ops.ScatterAdd, types: Types, xp: ModuleType) -> Run:
    """Sums of the updates that go to the same row, accumulated in at least float32."""
    rows, count = op.rows, types[0].size
    (result,) = op.infer(types)
    dtype = result.dtype.numpy
    accumulate = accumulator(result.dtype)
    small = rows <= _MATMUL_ROWS and result.dtype.is_float
    flat = (count, math.prod(result.shape[1:]))

    def run(ids: Any, updates: Any, offset: Any = None) -> Any:
        ids = xp.reshape(ids, (count,))
        updates = xp.asarray(xp.reshape(updates, flat), dtype=accumulate)
        if offset is None:
            check_ids("scatter_add", ids, rows, xp)
        else:
            if op.whole:
                check_ids("scatter_add", ids, op.whole, xp)
            ids, outside = _local(ids, offset, rows, xp)
            inside = ~outside
            ids, updates = ids[inside], updates[inside]
        # In a product, infinity of one row times the 0 of another would be NaN there.
        add = _add_by_product if small and np.isfinite(updates).all() else _add_by_sorting
        total = add(ids, updates, rows, xp)
        return xp.asarray(xp.reshape(total, result.shape), dtype=dtype)

    return run


def _add_by_product(ids: Any, updates: Any, rows: int, xp: ModuleType) -> Any:
    chosen = xp.zeros((rows, ids.shape[0]), dtype=updates.dtype)
    chosen[ids, xp.arange(ids.shape[0])] = 1
    return xp.matmul(chosen, updates)


def _add_by_sorting(ids: Any, updates: Any, rows: int, xp: ModuleType) -> Any:
    total = xp.zeros((rows, updates.shape[1]), dtype=updates.dtype)
    if not ids.shape[0]:
        return total
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.concatenate(([0], np.flatnonzero(ids[1:] != ids[:-1]) + 1))
    total[ids[starts]] = np.add.reduceat(updates[order], starts, axis=0)
    return total


@kernel(ops.OneHot)
def one_hot(op: ops.OneHot, types: Types, xp: ModuleType) -> Run:
    """Zeros with ones put in."""
    count, classes, dtype = types[0].size, op.classes, op.dtype.numpy
    shape = (*types[0].shape, classes)

    def run(ids: Any, offset: Any = 0) -> Any:
        local, outside = _local(xp.reshape(ids, (count,)), offset, classes, xp)
        inside = ~outside
        result = xp.zeros((count, classes), dtype=dtype)
        result[xp.arange(count)[inside], local[inside]] = 1
        return xp.reshape(result, shape)

    return run


@kernel(ops.Iota)
def iota(op: ops.Iota, types: Types, xp: ModuleType) -> Run:
    """A range, broadcast; made once."""
    size, dtype = op.shape[op.axis], op.dtype.numpy
    column = xp.reshape(
        xp.arange(size, dtype=np.int64), (size,) + (1,) * (len(op.shape) - op.axis - 1)
    )

    def run(offset: Any = 0) -> Any:
        return xp.broadcast_to(xp.asarray(column + offset, dtype=dtype), op.shape)

    if types:
        return run
    counted = run()
    return lambda: counted


def _local(ids: Any, offset: Any, rows: int, xp: ModuleType) -> tuple[Any, Any]:
    """Return ids counted from the offset, and where they lie outside the local rows."""
    local = xp.asarray(ids, dtype=np.int64) - xp.asarray(offset, dtype=np.int64)
    return local, (local < 0) | (local >= rows)
