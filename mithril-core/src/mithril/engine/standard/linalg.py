"""Shared kernels of products: einsum, and products with a matrix for each block."""

from __future__ import annotations

import math
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel


@kernel(ops.Einsum)
def einsum(op: ops.Einsum, types: Types, xp: ArrayNamespace) -> Run:
    """One batched product of matrices; 16-bit floats are multiplied in float32."""
    left, right, result = op.terms
    batch = [c for c in result if c in left and c in right]
    rows = [c for c in left if c not in right]
    contracted = [c for c in left if c in right and c not in result]
    columns = [c for c in right if c not in left]
    sizes = dict(zip(left + right, types[0].shape + types[1].shape, strict=True))
    outer, inner = [sizes[c] for c in batch], math.prod(sizes[c] for c in contracted)
    high, wide_ = (math.prod(sizes[c] for c in letters) for letters in (rows, columns))
    made = [*batch, *rows, *columns]
    orders = [[left.index(c) for c in (*batch, *rows, *contracted)]]
    orders += [[right.index(c) for c in (*batch, *contracted, *columns)]]
    shapes = [(*outer, high, inner), (*outer, inner, wide_)]
    back = tuple(made.index(c) for c in result)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (types[0].dtype, widen(types[0].dtype)))

    def run(*operands: Any) -> Any:
        x, y = (
            xp.reshape(xp.permute_dims(xp.astype(x, wide, copy=False), tuple(order)), shape)
            for x, order, shape in zip(operands, orders, shapes, strict=True)
        )
        found = xp.reshape(xp.matmul(x, y), tuple(sizes[c] for c in made))
        return xp.astype(xp.permute_dims(found, back), dtype, copy=False)

    return run
