"""Kernels of products with a matrix for each block, by MLX's products of gathered matrices."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mithril.spi import DType, KernelRun, Types, ops

from mithril_mlx.kernels.empty import zero_without_elements
from mithril_mlx.kernels.precision import in_float32
from mithril_mlx.kernels.table import kernel


@kernel(ops.GroupedMatmul)
@zero_without_elements
@in_float32
def grouped_matmul(op: ops.GroupedMatmul, types: Types) -> KernelRun:
    """Each block times the matrix of its id, zeros where there is none."""
    (result,) = op.infer(types)
    (groups, count, rows, features), entries = types[0].shape, types[2].shape[0]
    shape = (groups * count, rows, features)
    multiply = _gather if types[0].dtype == DType.float64 else _by_index

    def run(x: Any, ids: Any, stack: Any) -> Any:
        ids = mx.reshape(ids, (-1,)).astype(mx.int32)
        known = mx.reshape(mx.logical_and(ids >= 0, ids < entries), (-1, 1, 1))
        stack = stack if op.transposed else mx.swapaxes(stack, 1, 2)
        near = mx.clip(ids, 0, entries - 1).astype(mx.uint32)
        made = multiply(mx.reshape(x, shape), stack, near)
        return mx.reshape(mx.where(known, made, mx.array(0, dtype=made.dtype)), result.shape)

    return run


@kernel(ops.GroupedOuter)
@zero_without_elements
@in_float32
def grouped_outer(op: ops.GroupedOuter, types: Types) -> KernelRun:
    """One product for each entry, over its rows in one piece."""
    if types[0].dtype == DType.float64:
        return _sum_outer(op, types)
    groups, count, rows, _ = types[0].shape
    entries = op.entries

    def run(left: Any, right: Any, ids: Any) -> Any:
        ids = mx.reshape(ids, (-1,)).astype(mx.int32)
        ids = mx.where(mx.logical_and(ids >= 0, ids < entries), ids, entries)
        order = mx.argsort(ids)
        named = mx.equal(mx.expand_dims(ids, 1), mx.arange(entries, dtype=mx.int32))
        ends = mx.cumsum(mx.sum(named, axis=0)) * rows
        starts = mx.concatenate([mx.zeros((1,), ends.dtype), ends[:-1]])
        first, second = (
            mx.reshape(
                mx.take(mx.reshape(x, (groups * count, rows, x.shape[3])), order, 0),
                (-1, x.shape[3]),
            )
            for x in (left, right)
        )
        segments = mx.stack([starts, ends], axis=1).astype(mx.uint32)
        return mx.segmented_mm(first.T, second, segments)

    return run


def _by_index(x: Any, stack: Any, ids: Any) -> Any:
    return mx.gather_mm(x, stack, rhs_indices=ids)


def _gather(x: Any, stack: Any, ids: Any) -> Any:
    """Multiply copies of matrices: MLX's product by index is of float32 alone."""
    return mx.matmul(x, mx.take(stack, ids, 0))


def _sum_outer(op: ops.GroupedOuter, types: Types) -> KernelRun:
    """Add up the products of all blocks: MLX's product of segments is of float32 alone."""
    (groups, count, rows, first), second = types[0].shape, types[1].shape[3]

    def run(left: Any, right: Any, ids: Any) -> Any:
        left = mx.reshape(left, (groups * count, rows, first))
        right = mx.reshape(right, (groups * count, rows, second))
        products = mx.matmul(mx.swapaxes(left, 1, 2), right)
        ids = mx.reshape(ids, (-1,)).astype(mx.int32)
        ids = mx.where(mx.logical_and(ids >= 0, ids < op.entries), ids, op.entries)
        spare = mx.zeros((op.entries + 1, first, second), left.dtype)
        return spare.at[ids].add(products)[: op.entries]

    return run
