"""Kernels of MoE dispatch and combine, inside groups; an id that names no row gives zeros."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mithril.spi import KernelRun, TensorType, Types, ops

from mithril_mlx.kernels.elementwise import number
from mithril_mlx.kernels.index import to_unsigned
from mithril_mlx.kernels.precision import accumulator
from mithril_mlx.kernels.shape import fill
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype


@kernel(ops.MoeDispatch)
def moe_dispatch(op: ops.MoeDispatch, types: Types) -> KernelRun:
    """Rows copied, group by group."""
    (result,) = op.infer(types)
    if not types[0].size or not result.size:
        return fill(0, result)
    rows_of = _rows(types[0], types[1])
    return lambda x, ids, back: rows_of(x, ids)


@kernel(ops.MoeCombine)
def moe_combine(op: ops.MoeCombine, types: Types) -> KernelRun:
    """Rows of each round added up; of 16-bit floats in float32."""
    (result,) = op.infer(types)
    if not types[0].size or not result.size:
        return fill(0, result)
    groups, rows, features = result.shape
    shape = (groups, types[1].shape[1] // rows, rows, features)
    rows_of, accumulate, dtype = (
        _rows(types[0], types[1]),
        accumulator(result.dtype),
        mlx_dtype(result.dtype),
    )

    def run(x: Any, ids: Any, back: Any) -> Any:
        found = mx.reshape(rows_of(x, ids), shape)
        return mx.sum(found.astype(accumulate), axis=1).astype(dtype)

    return run


def _rows(x: TensorType, ids: TensorType) -> KernelRun:
    groups, rows, features = x.shape
    counted, zero = to_unsigned(ids), number(0, x.dtype)
    start = (mx.arange(groups) * rows).reshape(groups, 1).astype(counted)

    def run(x: Any, ids: Any) -> Any:
        ids = ids.astype(counted)
        table = mx.reshape(x, (groups * rows, features))
        found = mx.take(table, mx.minimum(ids, rows - 1) + start, 0)
        return mx.where(mx.expand_dims(ids < rows, 2), found, zero)

    return run
