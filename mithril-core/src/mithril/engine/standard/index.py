"""Shared kernels of the ops that choose by integers.

Rows are read with `take` and added up by products with one-hot matrices, in blocks: the standard
has no way to write at places that are data.
"""

from __future__ import annotations

import math
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel
from mithril.ops.index import check_ids
from mithril.types import DType

_BLOCK = 1 << 22
"""Elements of a one-hot matrix at a time."""


@kernel(ops.Take)
def take(op: ops.Take, types: Types, xp: ArrayNamespace) -> Run:
    """Rows of the table; zeros for ids that lie on another shard."""
    rows, count = types[0].shape[0], types[1].size
    (result,) = op.infer(types)

    def whole(table: Any, ids: Any) -> Any:
        check_ids("take", ids, rows, xp)
        return xp.reshape(xp.take(table, xp.reshape(ids, (count,)), axis=0), result.shape)

    def part(table: Any, ids: Any, offset: Any) -> Any:
        if op.rows:
            check_ids("take", ids, op.rows, xp)
        if not rows:
            return xp.zeros(result.shape, dtype=table.dtype)
        local, outside = _count_from(xp.reshape(ids, (count,)), offset, rows, xp)
        found = xp.take(table, xp.where(outside, xp.zeros_like(local), local), axis=0)
        return xp.reshape(keep_where(~outside, found, xp), result.shape)

    return whole if len(types) == 2 else part


@kernel(ops.ScatterAdd)
def scatter_add(op: ops.ScatterAdd, types: Types, xp: ArrayNamespace) -> Run:
    """Sums of the updates that go to the same row, accumulated in at least float32."""
    rows, count = op.rows, types[0].size
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    width = math.prod(result.shape[1:])

    def run(ids: Any, updates: Any, offset: Any = None) -> Any:
        ids = xp.reshape(ids, (count,))
        if offset is None:
            check_ids("scatter_add", ids, rows, xp)
        elif op.whole:
            check_ids("scatter_add", ids, op.whole, xp)
        local, _ = _count_from(ids, 0 if offset is None else offset, rows, xp)
        updates = xp.astype(xp.reshape(updates, (count, width)), wide, copy=False)
        total = xp.zeros((rows, width), dtype=wide)
        step = max(1, _BLOCK // max(1, rows))
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            chosen = mark(local[part], rows, wide, xp)
            turned = xp.permute_dims(chosen, (1, 0))
            total = total + add_marked(turned, updates[part, :], result.dtype.is_float, xp)
        return xp.astype(xp.reshape(total, result.shape), dtype, copy=False)

    return run


@kernel(ops.OneHot)
def one_hot(op: ops.OneHot, types: Types, xp: ArrayNamespace) -> Run:
    """1 where an id is the number of the column; none for ids that lie elsewhere."""
    dtype = dtype_in(xp, op.dtype)

    def run(ids: Any, offset: Any = 0) -> Any:
        local, _ = _count_from(ids, offset, op.classes, xp)
        return mark(local, op.classes, dtype, xp)

    return run


@kernel(ops.Iota)
def iota(op: ops.Iota, types: Types, xp: ArrayNamespace) -> Run:
    """A range, broadcast."""
    dtype, rank = dtype_in(xp, op.dtype), len(op.shape)
    counted = xp.arange(op.shape[op.axis], dtype=dtype_in(xp, DType.int64))
    column = xp.reshape(counted, (-1,) + (1,) * (rank - op.axis - 1))

    def run(offset: Any = None) -> Any:
        at = column if offset is None else column + as_int64(offset, xp)
        return xp.broadcast_to(xp.astype(at, dtype, copy=False), op.shape)

    return run


def pick(x: Any, indices: Any, axis: int, xp: ArrayNamespace) -> Any:
    """Return elements by position along a dimension, row by row, as `take_along_axis` does."""
    x, at = move_last(x, axis, xp), move_last(as_int64(indices, xp), axis, xp)
    rows, size = math.prod(x.shape[:-1]), x.shape[-1]
    first = xp.reshape(xp.arange(rows, dtype=at.dtype) * size, (*at.shape[:-1], 1))
    found = xp.take(xp.reshape(x, (-1,)), xp.reshape(first + at, (-1,)), axis=0)
    return move_back(xp.reshape(found, at.shape), axis, xp)


def mark(ids: Any, classes: int, dtype: Any, xp: ArrayNamespace) -> Any:
    """Return 1 where an id is the number of the column, [*ids.shape, classes]."""
    columns = xp.arange(classes, dtype=ids.dtype)
    return xp.astype(xp.expand_dims(ids, axis=-1) == columns, dtype)


def add_marked(marks: Any, values: Any, is_float: bool, xp: ArrayNamespace) -> Any:
    """Return marks @ values, of marks 0 and 1: what is not marked adds nothing, infinite or not.

    A product of 0 and infinity is NaN, so sums of what is finite are apart from the rest.

    Args:
        marks: [rows, count].
        values: [count, width], of the dtype of the marks.
        is_float: whether they may be infinite or NaN.
        xp: the array namespace.
    """
    if not is_float:
        return xp.matmul(marks, values)
    zero, odd = xp.zeros_like(values), xp.logical_not(xp.isfinite(values))
    total = xp.matmul(marks, xp.where(odd, zero, values))
    for sign, others in ((1, values < zero), (-1, values > zero)):  # NaN counts as both: inf - inf
        chosen = xp.logical_and(odd, xp.logical_not(others))
        count = xp.matmul(marks, xp.astype(chosen, values.dtype))
        endless = xp.zeros_like(total) + sign * math.inf
        total = total + xp.where(count > 0, endless, xp.zeros_like(total))
    return total


def keep_where(wanted: Any, rows: Any, xp: ArrayNamespace) -> Any:
    """Return rows of one more dimension than what says which are kept, zeros for the others."""
    for _ in range(len(rows.shape) - len(wanted.shape)):
        wanted = xp.expand_dims(wanted, axis=-1)
    return xp.where(wanted, rows, xp.zeros_like(rows))


def _count_from(ids: Any, offset: Any, rows: int, xp: ArrayNamespace) -> tuple[Any, Any]:
    """Return ids counted from the offset, and where they lie outside the local rows."""
    local = as_int64(ids, xp) - as_int64(offset, xp)
    return local, (local < 0) | (local >= rows)


def as_int64(x: Any, xp: ArrayNamespace) -> Any:
    """Return integers, or one, as an array of int64."""
    dtype = dtype_in(xp, DType.int64)
    return xp.asarray(x, dtype=dtype) if isinstance(x, int) else xp.astype(x, dtype, copy=False)


def move_last(x: Any, axis: int, xp: ArrayNamespace) -> Any:
    """Return x with a dimension as its last one."""
    rank = len(x.shape)
    return xp.permute_dims(x, (*(i for i in range(rank) if i != axis % rank), axis % rank))


def move_back(x: Any, axis: int, xp: ArrayNamespace) -> Any:
    """Return x with its last dimension in the place that `move_last` took it from."""
    rank = len(x.shape)
    order = list(range(rank - 1))
    order.insert(axis % rank, rank - 1)
    return xp.permute_dims(x, tuple(order))
