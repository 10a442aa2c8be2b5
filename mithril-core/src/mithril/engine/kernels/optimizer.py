"""Kernel of the update of AdamW, in blocks that stay in the processor's cache.

Where an operand is given up, and nobody else has it, its memory takes the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from mithril import ops
from mithril.engine.kernels.blocks import BLOCK
from mithril.engine.kernels.ownership import is_alone
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.types import promote

Arrays: TypeAlias = Sequence[Any]


@kernel(ops.AdamWStep)
def adamw_step(op: ops.AdamWStep, types: Types, xp: ModuleType) -> Run:
    """The formula, with what is one number for all elements computed first."""
    wide = accumulator(promote(types[0].dtype, types[2].dtype))
    dtypes = [types[i].dtype.numpy for i in (0, 2, 3)]

    def update(numbers: tuple[Any, ...], given: Arrays, made: Arrays, free: Arrays) -> None:
        """Write the new p, m and v into `made`; nothing but them and `free` is written into."""
        scale, away, decay = numbers
        p, g, m, v = (xp.asarray(x, dtype=wide) for x in given)
        new_p, new_m, new_v = wide_made = [
            x if x.dtype == wide else xp.empty(x.shape, dtype=wide) for x in made
        ]
        change, square = free
        xp.subtract(g, m, out=change)
        change *= 1 - op.b1
        xp.add(change, m, out=new_m)
        xp.multiply(g, g, out=square)
        square *= 1 - op.b2
        xp.multiply(v, op.b2, out=new_v)
        new_v += square
        root = xp.sqrt(new_v, out=square)
        root += away
        step = xp.multiply(new_m, scale, out=change)
        step /= root
        xp.multiply(p, decay, out=new_p)
        new_p -= step
        for x, found in zip(made, wide_made, strict=True):
            if x is not found:
                x[...] = found

    def run(p: Any, g: Any, m: Any, v: Any, rate: Any, count: Any) -> tuple[Any, ...]:
        has_own = (  # said one by one: a list of them would be one that has them, too
            0 in op.in_place and is_alone(p), 2 in op.in_place and is_alone(m),
            3 in op.in_place and is_alone(v),
        )  # fmt: skip
        given = p, m, v
        results = tuple(
            x if own and x.flags.c_contiguous else xp.empty(x.shape, dtype=dtype)
            for x, own, dtype in zip(given, has_own, dtypes, strict=True)
        )
        numbers = _find_numbers(op, float(rate), float(count))
        if p.size <= BLOCK:
            update(numbers, (p, g, m, v), results, [xp.empty(p.shape, wide) for _ in range(2)])
            return results
        flat = [xp.reshape(x, (-1,)) for x in (p, g, m, v)]
        made = [xp.reshape(x, (-1,)) for x in results]
        free = [xp.empty(BLOCK, dtype=wide) for _ in range(2)]
        for start in range(0, p.size, BLOCK):
            part, size = slice(start, start + BLOCK), min(BLOCK, p.size - start)
            update(numbers, [x[part] for x in flat], [x[part] for x in made],
                   [x[:size] for x in free])  # fmt: skip
        return results

    return run


@lru_cache(maxsize=16)
def _find_numbers(op: ops.AdamWStep, rate: float, count: float) -> tuple[float, float, float]:
    """Return what a step has of learning rate and count: the same for all parameters."""
    total = _sum_of_weights(op.b2, count) ** 0.5
    scale = rate * total / _sum_of_weights(op.b1, count)
    return float(scale), float(total * op.eps), 1.0 - rate * op.weight_decay


def _sum_of_weights(b: float, count: float) -> np.float64:
    """Return 1 - b ** count, exact where that is small."""
    return np.float64(-np.expm1(count * math.log(b)) if b else 1.0)
