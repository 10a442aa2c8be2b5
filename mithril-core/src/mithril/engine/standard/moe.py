"""Shared kernels of the ops that hand rows around inside groups; an id of -1 gives zeros."""

from __future__ import annotations

from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.index import as_int64, keep_where
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel
from mithril.ops.index import check_ids


@kernel(ops.MoeDispatch)
def moe_dispatch(op: ops.MoeDispatch, types: Types, xp: ArrayNamespace) -> Run:
    """Rows of each group by id, zeros where there is none."""
    return lambda x, ids, back: _rows_by_id(op.name, x, ids, xp)


@kernel(ops.MoeCombine)
def moe_combine(op: ops.MoeCombine, types: Types, xp: ArrayNamespace) -> Run:
    """Rows of each round added up; of 16-bit floats in float32."""
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    groups, rows, features = result.shape
    rounds = types[1].shape[1] // max(rows, 1)

    def run(x: Any, ids: Any, back: Any) -> Any:
        found = _rows_by_id(op.name, xp.astype(x, wide, copy=False), ids, xp)
        found = xp.reshape(found, (groups, rounds, rows, features))
        return xp.astype(xp.sum(found, axis=1, dtype=wide), dtype, copy=False)

    return run


def _rows_by_id(what: str, x: Any, ids: Any, xp: ArrayNamespace) -> Any:
    """Return rows of x [groups, rows, features] by id inside each group; -1 gives zeros."""
    (groups, count, features), places = x.shape, ids.shape[1]
    ids = as_int64(ids, xp)
    check_ids(what, ids + 1, count + 1, xp)
    if not count:
        return xp.zeros((groups, places, features), dtype=x.dtype)
    first = xp.reshape(xp.arange(groups, dtype=ids.dtype) * count, (groups, 1))
    at = xp.reshape(first + xp.where(ids < 0, xp.zeros_like(ids), ids), (-1,))
    found = xp.take(xp.reshape(x, (groups * count, features)), at, axis=0)
    return keep_where(ids >= 0, xp.reshape(found, (groups, places, features)), xp)
