"""Kernel of the update of AdamW."""

from __future__ import annotations

import math

import mlx.core as mx
from mithril import ops
from mithril.engine.kernels.registry import Run, Types
from mithril.types import promote

from mithril_mlx.kernels.precision import accumulator
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype


@kernel(ops.AdamWStep)
def adamw_step(op: ops.AdamWStep, types: Types) -> Run:
    """The formula with as few passes as it takes: what is one number for all comes first."""
    wide = accumulator(promote(types[0].dtype, types[2].dtype))
    dtypes = [mlx_dtype(types[i].dtype) for i in (0, 2, 3)]

    def run(*operands: mx.array) -> tuple[mx.array, ...]:
        p, g, m, v, rate, count = (x.astype(wide) for x in operands)
        # With c = sqrt(1 - b2^t): (m / a) / (sqrt(v) / c + eps) = m c / a / (sqrt(v) + c eps).
        root = mx.sqrt(_sum_of_weights(op.b2, count))
        scale = rate * root / _sum_of_weights(op.b1, count)
        m = m + (g - m) * (1 - op.b1)
        v = v * op.b2 + mx.square(g) * (1 - op.b2)
        kept = p * (1 - rate * op.weight_decay) if op.weight_decay else p
        p = kept - m * scale / (mx.sqrt(v) + root * op.eps)
        return tuple(x.astype(dtype) for x, dtype in zip((p, m, v), dtypes, strict=True))

    return run


def _sum_of_weights(b: float, count: mx.array) -> mx.array:
    """Return 1 - b ** count, exact where that is small."""
    return -mx.expm1(count * math.log(b)) if b else mx.ones_like(count)
