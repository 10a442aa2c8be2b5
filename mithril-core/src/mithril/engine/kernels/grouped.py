"""Kernels of products with a matrix for each block: one product for each matrix that is named."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import grouped as ops


@kernel(ops.GroupedMatmul)
def grouped_matmul(op: ops.GroupedMatmul, types: Types, xp: ModuleType) -> Run:
    """Blocks of one matrix are multiplied together; 16-bit floats in float32."""
    (result,) = op.infer(types)
    dtype, wide = result.dtype.numpy, accumulator(result.dtype)
    groups, count, rows, features = types[0].shape
    out = result.shape[3]

    def run(x: Any, ids: Any, stack: Any) -> Any:
        blocks = xp.asarray(xp.reshape(x, (groups * count, rows, features)), dtype=wide)
        stack = xp.asarray(stack if op.transposed else xp.matrix_transpose(stack), dtype=wide)
        made = xp.zeros((groups * count, rows, out), dtype=wide)
        for entry, which in _by_entry(ids, stack.shape[0]):
            chosen = blocks[which].reshape(which.size * rows, features)
            made[which] = xp.matmul(chosen, stack[entry]).reshape(which.size, rows, out)
        return xp.asarray(xp.reshape(made, result.shape), dtype=dtype)

    return run


@kernel(ops.GroupedOuter)
def grouped_outer(op: ops.GroupedOuter, types: Types, xp: ModuleType) -> Run:
    """One product for each entry, over the rows of all its blocks; 16-bit floats in float32."""
    (result,) = op.infer(types)
    dtype, wide = result.dtype.numpy, accumulator(result.dtype)
    flat = [(x.shape[0] * x.shape[1], x.shape[2], x.shape[3]) for x in types[:2]]

    def run(left: Any, right: Any, ids: Any) -> Any:
        left, right = (
            xp.asarray(xp.reshape(x, shape), dtype=wide)
            for x, shape in zip((left, right), flat, strict=True)
        )
        made = xp.zeros(result.shape, dtype=wide)
        for entry, which in _by_entry(ids, op.entries):
            first, second = (np.concatenate(x[which]) for x in (left, right))
            made[entry] = xp.matmul(first.T, second)
        return xp.asarray(made, dtype=dtype)

    return run


def _by_entry(ids: Any, entries: int) -> Iterator[tuple[int, Any]]:
    """Yield each entry that a block names, and which blocks do."""
    ids = np.reshape(ids, -1)
    for entry in range(entries):
        which = np.flatnonzero(ids == entry)
        if which.size:
            yield entry, which
