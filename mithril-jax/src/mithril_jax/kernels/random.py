"""The kernel of random bits: Threefry-2x32, equal to the core's bit for bit.

The counter of an element is its global index, a 64-bit number; it is worked out in two words of 32
bits, because 64-bit integers are off in JAX by default.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from mithril.spi import THREEFRY_PARITY, THREEFRY_ROTATIONS, KernelRun, Types
from mithril.spi.ops import RandomBits

from mithril_jax.kernels.table import kernel

MASK = 0xFFFFFFFF
Words = tuple[Any, Any]  # high, low


@kernel(RandomBits)
def random_bits(op: RandomBits, types: Types) -> KernelRun:
    """Encrypt each element's global index under (seed, salt)."""

    shift = np.uint32(32 - op.width)

    def run(seed: Any, *offsets: Any) -> Any:
        high, low = _global_index(op, offsets)
        bits = _threefry(seed.astype(jnp.uint32), np.uint32(op.salt & MASK), high, low)
        return bits >> shift if shift else bits

    return run


def _global_index(op: RandomBits, offsets: tuple[Any, ...]) -> Words:
    """Return the row-major index in the whole tensor of each element of this part."""
    zero = jnp.zeros(op.shape, jnp.uint32)
    total: Words = (zero, zero)
    for dimension, start in enumerate(offsets or (0,) * len(op.shape)):
        stride = math.prod(op.global_shape[dimension + 1 :])
        along = lax.broadcasted_iota(np.uint32, op.shape, dimension)
        along = along + jnp.asarray(start).astype(jnp.uint32)
        total = _add(total, _multiply(along, stride))
    return total


def _multiply(x: Any, factor: int) -> Words:
    """Return the 64-bit product of a word and a constant."""
    low, high = np.uint32(factor & MASK), np.uint32(factor >> 32)
    if factor == 1:
        return jnp.zeros_like(x), x
    a, b = x & np.uint32(0xFFFF), x >> np.uint32(16)
    c, d = low & np.uint32(0xFFFF), low >> np.uint32(16)
    middle = (a * c >> np.uint32(16)) + (b * c & np.uint32(0xFFFF)) + (a * d & np.uint32(0xFFFF))
    carry = (b * c >> np.uint32(16)) + (a * d >> np.uint32(16)) + (middle >> np.uint32(16))
    return b * d + carry + x * high, x * low


def _add(x: Words, y: Words) -> Words:
    low = x[1] + y[1]
    return x[0] + y[0] + (low < x[1]).astype(jnp.uint32), low


def _threefry(key0: Any, key1: Any, x0: Any, x1: Any) -> Any:
    """Return the first word of Threefry-2x32-20."""
    keys = (key0, key1, np.uint32(THREEFRY_PARITY) ^ key0 ^ key1)
    x0, x1 = x0 + key0, x1 + key1
    for group in range(5):
        for rotation in THREEFRY_ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0
