"""The kernel of random bits: Threefry-2x32 on arrays, in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.blocks import BLOCK
from mithril.engine.kernels.registry import Run, kernel
from mithril.engine.standard.random import MASK, PARITY, ROTATIONS
from mithril.ops.random import RandomBits
from mithril.types import Shape, TensorType


@kernel(RandomBits)
def random_bits(op: RandomBits, types: Sequence[TensorType], xp: ModuleType) -> Run:
    """Encrypt each element's global index under (seed, salt), in blocks that stay in the cache."""
    shape, width = op.shape, np.uint32(32 - op.width)
    count = math.prod(shape)

    def run(seed: Any, *offsets: Any) -> Any:
        starts = [int(offset) for offset in offsets] or [0] * len(shape)
        index = _global_index(starts, op)
        result = np.empty(count, np.uint32)
        for at in range(0, count, BLOCK):
            part = slice(at, at + BLOCK)
            low = index[part].astype(np.uint32)
            high = (index[part] >> np.uint64(32)).astype(np.uint32)
            result[part] = threefry(int(seed), op.salt & MASK, high, low)
        if width:
            result >>= width
        return xp.asarray(result.reshape(shape))

    return run


def _global_index(starts: Sequence[int], op: RandomBits) -> np.ndarray:
    """Return the row-major index in the whole tensor of each element of this part, flat."""
    index = np.zeros((), np.uint64)
    for start, size, stride in zip(starts, op.shape, _strides(op.global_shape), strict=True):
        along = np.arange(start, start + size, dtype=np.uint64) * np.uint64(stride)
        index = np.add.outer(index, along)
    return index.reshape(-1)


def threefry(key0: int, key1: int, x0: np.ndarray, x1: np.ndarray) -> np.ndarray:
    """Return the first word of Threefry-2x32-20; the counters x0 and x1 are overwritten.

    Args:
        key0: first key word.
        key1: second key word.
        x0: uint32 array, high words of the counter.
        x1: uint32 array, low words of the counter.
    """
    keys = (key0, key1, PARITY ^ key0 ^ key1)
    x0 += np.uint32(key0)
    x1 += np.uint32(key1)
    turned = np.empty_like(x1)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 += x1
            np.left_shift(x1, np.uint32(rotation), out=turned)
            x1 >>= np.uint32(32 - rotation)
            x1 |= turned
            x1 ^= x0
        x0 += np.uint32(keys[(group + 1) % 3])
        x1 += np.uint32((keys[(group + 2) % 3] + group + 1) & MASK)
    return x0


def _strides(shape: Shape) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
