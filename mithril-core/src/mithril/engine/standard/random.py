"""The shared kernel of random bits: Threefry-2x32 in int64, which holds 32 bits shifted by 29."""

from __future__ import annotations

import math
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in
from mithril.engine.standard.table import kernel
from mithril.types import DType

PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
MASK = 0xFFFFFFFF


@kernel(ops.RandomBits)
def random_bits(op: ops.RandomBits, types: Types, xp: ArrayNamespace) -> Run:
    """Encrypt each element's global index under (seed, salt)."""
    word, uint32 = dtype_in(xp, DType.int64), dtype_in(xp, DType.uint32)
    rank = len(op.shape)

    def run(seed: Any, *offsets: Any) -> Any:
        index = xp.zeros(op.shape, dtype=word)
        for axis, size in enumerate(op.shape):
            along = xp.arange(size, dtype=word)
            if offsets:
                along = along + xp.astype(offsets[axis], word)
            along = along * math.prod(op.global_shape[axis + 1 :])
            index = index + xp.reshape(along, (-1,) + (1,) * (rank - axis - 1))
        bits = threefry(xp.astype(seed, word), op.salt & MASK, index >> 32, index & MASK)
        return xp.astype(bits >> (32 - op.width), uint32)

    return run


def threefry(key0: Any, key1: int, x0: Any, x1: Any) -> Any:
    """Return the first word of Threefry-2x32-20; all words are 32 bits in 64.

    Args:
        key0: first key word.
        key1: second key word.
        x0: high words of the counter.
        x1: low words of the counter.
    """
    keys = (key0, key1, (key0 ^ key1) ^ PARITY)
    x0, x1 = (x0 + keys[0]) & MASK, (x1 + keys[1]) & MASK
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = (x0 + x1) & MASK
            x1 = (((x1 << rotation) & MASK) | (x1 >> (32 - rotation))) ^ x0
        x0 = (x0 + keys[(group + 1) % 3]) & MASK
        x1 = (x1 + keys[(group + 2) % 3] + (group + 1)) & MASK
    return x0
