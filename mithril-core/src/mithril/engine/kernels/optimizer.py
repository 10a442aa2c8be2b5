"""Kernel of the update of AdamW; temporaries are reused in place."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from mithril import ops
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.types import promote


@kernel(ops.AdamWStep)
def adamw_step(op: ops.AdamWStep, types: Types, xp: ModuleType) -> Run:
    """The formula, with what is one number for all elements computed first."""
    wide = accumulator(promote(types[0].dtype, types[2].dtype))
    dtypes = [types[i].dtype.numpy for i in (0, 2, 3)]

    def run(p: Any, g: Any, m: Any, v: Any, rate: Any, count: Any) -> tuple[Any, ...]:
        p, g, m, v, rate, count = (xp.asarray(x, dtype=wide) for x in (p, g, m, v, rate, count))
        total = _sum_of_weights(op.b2, count, xp) ** 0.5
        scale = rate * total / _sum_of_weights(op.b1, count, xp)
        change = g - m
        change *= 1 - op.b1
        change += m
        m = change
        square = g * g
        square *= 1 - op.b2
        v = v * op.b2
        v += square
        root = xp.sqrt(v)
        root += total * op.eps
        step = m * scale
        step /= root
        p = p * (1 - rate * op.weight_decay)
        p -= step
        return tuple(xp.asarray(x, dtype=dtype) for x, dtype in zip((p, m, v), dtypes, strict=True))

    return run


def _sum_of_weights(b: float, count: Any, xp: ModuleType) -> Any:
    """Return 1 - b ** count, exact where that is small."""
    return -xp.expm1(count * math.log(b)) if b else 1.0
