"""Shared kernels along one dimension: order, picking by position.

NaN comes last in either order, which the standard leaves open.
"""

from __future__ import annotations

from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.index import as_int64, mark, move_back, move_last, pick
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel
from mithril.ops.index import check_ids
from mithril.types import DType


@kernel(ops.Argsort)
def argsort(op: ops.Argsort, types: Types, xp: ArrayNamespace) -> Run:
    """Positions by a stable sort."""
    int32 = dtype_in(xp, DType.int32)
    return lambda x: xp.astype(_order(x, types, op.axis, op.descending, xp), int32, copy=False)


@kernel(ops.Sort)
def sort(op: ops.Sort, types: Types, xp: ArrayNamespace) -> Run:
    """The elements in the order of their positions."""
    return lambda x: pick(x, _order(x, types, op.axis, op.descending, xp), op.axis, xp)


@kernel(ops.TopK)
def top_k(op: ops.TopK, types: Types, xp: ArrayNamespace) -> Run:
    """The first k of a stable descending sort."""
    first, int32 = (*(slice(None),) * op.axis, slice(0, op.k), ...), dtype_in(xp, DType.int32)

    def run(x: Any) -> Any:
        at = _order(x, types, op.axis, True, xp)[first]
        return pick(x, at, op.axis, xp), xp.astype(at, int32, copy=False)

    return run


def _order(x: Any, types: Types, axis: int, descending: bool, xp: ArrayNamespace) -> Any:
    """Return the positions of rows in order, equal elements as they are."""
    dtype = types[0].dtype
    if dtype == DType.bool_:
        x = xp.astype(x, dtype_in(xp, DType.int8))
    if not dtype.is_float:
        return xp.argsort(x, axis=axis, descending=descending, stable=True)
    is_nan = xp.isnan(x)
    numbers = xp.where(is_nan, xp.zeros_like(x), x)
    order = xp.argsort(numbers, axis=axis, descending=descending, stable=True)
    is_nan = xp.astype(pick(is_nan, order, axis, xp), dtype_in(xp, DType.int8))
    return pick(order, xp.argsort(is_nan, axis=axis, stable=True), axis, xp)


@kernel(ops.TakeAlong)
def take_along(op: ops.TakeAlong, types: Types, xp: ArrayNamespace) -> Run:
    """Elements by position, row by row."""
    size = op.whole or types[0].shape[op.axis]

    def run(x: Any, indices: Any) -> Any:
        check_ids("take_along", indices, size, xp)
        return pick(x, indices, op.axis, xp)

    return run


@kernel(ops.ScatterAlong)
def scatter_along(op: ops.ScatterAlong, types: Types, xp: ArrayNamespace) -> Run:
    """Sums of the updates that go to one place, in float32 for 16-bit floats."""
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))

    def run(indices: Any, updates: Any) -> Any:
        check_ids("scatter_along", indices, op.whole or op.size, xp)
        chosen = mark(move_last(as_int64(indices, xp), op.axis, xp), op.size, wide, xp)
        rows = xp.expand_dims(move_last(xp.astype(updates, wide, copy=False), op.axis, xp), axis=-2)
        total = xp.matmul(rows, chosen)[..., 0, :]
        return xp.astype(move_back(total, op.axis, xp), dtype, copy=False)

    return run
