"""Kernel of the update of AdamW, in blocks that stay in the processor's cache.

Where an operand is given up, and nobody else has it, its memory takes the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

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
        rate, count = (xp.asarray(x, dtype=wide) for x in (rate, count))
        total = _sum_of_weights(op.b2, count, xp) ** 0.5
        scale = rate * total / _sum_of_weights(op.b1, count, xp)
        numbers = scale, total * op.eps, 1 - rate * op.weight_decay
        flat = [xp.reshape(x, (-1,)) for x in (p, g, m, v)]
        made = [xp.reshape(x, (-1,)) for x in results]
        free = [xp.empty(min(BLOCK, p.size), dtype=wide) for _ in range(2)]
        for start in range(0, p.size, BLOCK):
            part, size = slice(start, start + BLOCK), min(BLOCK, p.size - start)
            update(numbers, [x[part] for x in flat], [x[part] for x in made],
                   [x[:size] for x in free])  # fmt: skip
        return results

    return run


def _sum_of_weights(b: float, count: Any, xp: ModuleType) -> Any:
    """Return 1 - b ** count, exact where that is small."""
    return -xp.expm1(count * math.log(b)) if b else 1.0
