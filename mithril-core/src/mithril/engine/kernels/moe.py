"""Kernels of the ops that hand rows around inside groups; an id of -1 gives zeros."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import moe as ops
from mithril.ops.index import check_ids
from mithril.types import TensorType


@kernel(ops.MoeDispatch)
def moe_dispatch(op: ops.MoeDispatch, types: Types, xp: ModuleType) -> Run:
    """Rows copied, zeros put where there is none."""
    rows_of = _rows(op.name, types[0], xp)
    return lambda x, ids, back: rows_of(x, ids)


@kernel(ops.MoeCombine)
def moe_combine(op: ops.MoeCombine, types: Types, xp: ModuleType) -> Run:
    """Rows of each round added up; of 16-bit floats in float32."""
    (result,) = op.infer(types)
    rows_of, dtype = _rows(op.name, types[0], xp), result.dtype.numpy
    wide = accumulator(result.dtype)
    groups, rows, features = result.shape
    rounds = types[1].shape[1] // max(rows, 1)

    def run(x: Any, ids: Any, back: Any) -> Any:
        found = xp.reshape(rows_of(x, ids), (groups, rounds, rows, features))
        return found[:, 0] if rounds == 1 else _total(found)

    def _total(found: Any) -> Any:
        return xp.asarray(xp.sum(found, axis=1, dtype=wide), dtype=dtype)

    return run


def _rows(what: str, x: TensorType, xp: ModuleType) -> Run:
    groups, count, _ = x.shape
    group = xp.arange(groups)[:, None]

    def run(x: Any, ids: Any) -> Any:
        ids = xp.asarray(ids, dtype=np.int64)
        check_ids(what, ids + 1, count + 1, xp)
        nothing = ids < 0
        if not count:
            return xp.zeros((*ids.shape, x.shape[2]), dtype=x.dtype)
        found = x[group, xp.where(nothing, 0, ids)]
        found[nothing] = 0
        return found

    return run
