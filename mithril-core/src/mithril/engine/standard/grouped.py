"""Shared kernels of products with a matrix for each block."""

from __future__ import annotations

from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.index import add_marked, mark
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel
from mithril.types import DType


@kernel(ops.GroupedMatmul)
def grouped_matmul(op: ops.GroupedMatmul, types: Types, xp: ArrayNamespace) -> Run:
    """Each block times its matrix, zeros for a block that names none; 16-bit floats in float32."""
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    groups, count, rows, features = types[0].shape
    entries = types[2].shape[0]

    def run(x: Any, ids: Any, stack: Any) -> Any:
        blocks = xp.astype(xp.reshape(x, (groups * count, rows, features)), wide, copy=False)
        stack = xp.astype(stack, wide, copy=False)
        stack = stack if op.transposed else xp.permute_dims(stack, (0, 2, 1))
        if not entries:
            return xp.zeros(result.shape, dtype=dtype)
        ids = xp.astype(xp.reshape(ids, (groups * count,)), dtype_in(xp, DType.int64), copy=False)
        is_there = (ids >= 0) & (ids < entries)
        chosen = xp.take(stack, xp.where(is_there, ids, xp.zeros_like(ids)), axis=0)
        made = xp.matmul(blocks, chosen)
        kept = xp.reshape(is_there, (groups * count, 1, 1))
        made = xp.where(kept, made, xp.zeros_like(made))
        return xp.astype(xp.reshape(made, result.shape), dtype, copy=False)

    return run


@kernel(ops.GroupedOuter)
def grouped_outer(op: ops.GroupedOuter, types: Types, xp: ArrayNamespace) -> Run:
    """Products of all blocks, added up by entry; 16-bit floats in float32."""
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    shapes = [(x.shape[0] * x.shape[1], x.shape[2], x.shape[3]) for x in types[:2]]

    def run(left: Any, right: Any, ids: Any) -> Any:
        left, right = (
            xp.astype(xp.reshape(x, shape), wide, copy=False)
            for x, shape in zip((left, right), shapes, strict=True)
        )
        products = xp.matmul(xp.permute_dims(left, (0, 2, 1)), right)
        ids = xp.astype(xp.reshape(ids, (shapes[0][0],)), dtype_in(xp, DType.int64), copy=False)
        chosen = xp.permute_dims(mark(ids, op.entries, wide, xp), (1, 0))
        flat = xp.reshape(products, (shapes[0][0], shapes[0][2] * shapes[1][2]))
        made = add_marked(chosen, flat, result.dtype.is_float, xp)
        return xp.astype(xp.reshape(made, result.shape), dtype, copy=False)

    return run
