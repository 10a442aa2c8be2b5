"""Kernels of buckets on CPU devices: small operands are sent as one array, without large ones.

XLA:CPU merges all-reduces into one of many operands, and then synchronises its devices once for
each of them: that costs more than to copy biases into one array and out again. Large operands are
sent as they are, since copies of them would take as much memory again.

What is gathered in one array is cut out of it where it is read, and stays whole until then: the
statistics of a batch, which the backward computation reads again, would keep a layer's weights.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

from jax import lax
from mithril.spi import KernelRun, Types
from mithril.spi.ops import AllGather, AllReduce

from mithril_jax.kernels.collectives import all_gather, all_reduce
from mithril_jax.kernels.table import CPU_KERNELS

SMALL_BYTES = 16 << 10
"""Up to here copying takes less time than another meeting of the devices."""


def small_operands(types: Types) -> list[int]:
    """Return the positions of the operands that travel as one array."""
    return [i for i, type in enumerate(types) if type.nbytes <= SMALL_BYTES]


@CPU_KERNELS.register(AllReduce)
def reduce_bucket(op: AllReduce, types: Types) -> KernelRun:
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


@CPU_KERNELS.register(AllGather)
def gather_bucket(op: AllGather, types: Types) -> KernelRun:
    """The parts of a group one after another; small operands are one array, large ones another."""
    small = small_operands(types)
    if len(small) in (0, len(types)):
        return all_gather(op, types)
    large = [i for i in range(len(types)) if i not in small]
    gathers = [(group, all_gather(op, [types[i] for i in group])) for group in (small, large)]

    def run(*operands: Any) -> Any:
        found: dict[int, Any] = {}
        for group, gather in gathers:
            made = gather(*(operands[i] for i in group))
            found |= zip(group, made if len(group) > 1 else [made], strict=True)
        return tuple(found[i] for i in range(len(types)))

    return run
