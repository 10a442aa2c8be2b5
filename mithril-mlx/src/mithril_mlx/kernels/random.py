"""The kernel of random bits: Threefry-2x32, equal to the core's bit for bit."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mithril.spi import THREEFRY_PARITY, THREEFRY_ROTATIONS, KernelRun, Types
from mithril.spi.ops import RandomBits

from mithril_mlx.kernels.precision import on_gpu
from mithril_mlx.kernels.table import kernel

BLOCK = 1 << 17
"""Blocks of this size take a third of the time that a large tensor takes in one go."""

_MASK = 0xFFFFFFFF


@kernel(RandomBits)
def random_bits(op: RandomBits, types: Types) -> KernelRun:
    """Encrypt each element's global index under (seed, salt)."""
    salt, shift, shape = _word(op.salt & _MASK), 32 - op.width, op.shape
    index, encrypt = _part(op) if len(types) > 1 else _whole(op), _encrypt(op)

    def run(seed: Any, *offsets: Any) -> Any:
        bits = mx.reshape(encrypt(seed, salt, *index(*offsets)), shape)
        return mx.right_shift(bits, shift) if shift else bits

    return run


def _encrypt(op: RandomBits) -> KernelRun:
    """Return Threefry, on CPU for blocks of elements: a hundred steps over what is in the cache."""
    count = math.prod(op.shape)
    if on_gpu() or count < 2 * BLOCK:
        return _threefry
    parts = [slice(at, at + BLOCK) for at in range(0, count, BLOCK)]

    def run(key0: Any, key1: Any, x0: Any, x1: Any) -> Any:
        x1 = mx.reshape(x1, (count,))
        high = mx.reshape(x0, (count,)) if x0.ndim else mx.broadcast_to(x0, (count,))
        return mx.concatenate([_threefry(key0, key1, high[part], x1[part]) for part in parts])

    return run


def _whole(op: RandomBits) -> KernelRun:
    """Return the function that gives both words of the index of every element of a whole tensor."""
    count = math.prod(op.shape)
    if count > _MASK:
        return lambda: _words(mx.arange(count, dtype=mx.uint64))
    zero = _word(0)
    return lambda: (zero, mx.arange(count, dtype=mx.uint32))


def _part(op: RandomBits) -> KernelRun:
    """Return the function that gives the words for a part, from where it starts."""
    rank, count = len(op.shape), math.prod(op.global_shape)
    dtype = mx.uint32 if count <= _MASK else mx.uint64
    lines = [
        mx.arange(size, dtype=dtype).reshape((size,) + (1,) * (rank - at - 1))
        for at, size in enumerate(op.shape)
    ]
    strides = [mx.array(math.prod(op.global_shape[at + 1 :]), dtype=dtype) for at in range(rank)]
    zero = _word(0)

    def run(*offsets: Any) -> Any:
        index = mx.array(0, dtype=dtype)
        for line, stride, offset in zip(lines, strides, offsets, strict=True):
            index = index + (line + offset.astype(dtype)) * stride
        return (zero, index) if dtype == mx.uint32 else _words(index)

    return run


def _words(index: Any) -> Any:
    return (index >> 32).astype(mx.uint32), index.astype(mx.uint32)


def _threefry(key0: Any, key1: Any, x0: Any, x1: Any) -> Any:
    """Return the first word of Threefry-2x32-20."""
    keys = (key0, key1, _word(THREEFRY_PARITY) ^ key0 ^ key1)
    x0, x1 = x0 + key0, x1 + key1
    for group in range(5):
        for rotation in THREEFRY_ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + (keys[(group + 2) % 3] + (group + 1))
    return x0


def _word(value: int) -> mx.array:
    return mx.array(value, dtype=mx.uint32)
