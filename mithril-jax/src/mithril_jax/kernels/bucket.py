"""The kernel of all_reduce on CPU devices: the small operands of a bucket are sent as one array.

XLA:CPU merges all-reduces into one of many operands, and then synchronises its devices once for
each of them: that costs more than to copy biases into one array and out again. Large operands are
sent as they are, since copies of them would take as much memory again.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

from jax import lax
from mithril.spi import KernelRun, Types
from mithril.spi.ops import AllReduce

from mithril_jax.kernels.collectives import all_reduce
from mithril_jax.kernels.table import CPU_KERNELS

SMALL_BYTES = 16 << 10
"""Up to here copying takes less time than another meeting of the devices."""


def small_operands(types: Types) -> list[int]:
    """Return the positions of the operands that travel as one array."""
    return [i for i, type in enumerate(types) if type.nbytes <= SMALL_BYTES]


@CPU_KERNELS.register(AllReduce)
def bucket(op: AllReduce, types: Types) -> KernelRun:
    """The reduction of each operand over a group; all operands are of one dtype."""
    small, reduce = small_operands(types), all_reduce(op, types)
    if len(small) < 2:
        return reduce
    large = [i for i in range(len(types)) if i not in small]
    sizes = [math.prod(types[i].shape) for i in small]
    cuts = list(pairwise(accumulate(sizes, initial=0)))

    def run(*operands: Any) -> Any:
        parts = [lax.reshape(operands[i], (size,)) for i, size in zip(small, sizes, strict=True)]
        travelling = [lax.concatenate(parts, 0), *(operands[i] for i in large)]
        whole, *others = reduce(*travelling)
        found = dict(zip(large, others, strict=True))
        for i, (start, stop) in zip(small, cuts, strict=True):
            found[i] = lax.reshape(lax.slice(whole, (start,), (stop,)), types[i].shape)
        return tuple(found[i] for i in range(len(types)))

    return run
