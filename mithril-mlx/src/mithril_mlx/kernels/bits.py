"""Integers of a tensor's size and masks of them, by which kernels choose without a branch."""

from __future__ import annotations

import mlx.core as mx
from mithril.spi import TensorType


def mask(condition: mx.array, bits: mx.Dtype) -> mx.array:
    """Return integers of which all bits are set where a condition holds, and none elsewhere."""
    return mx.negative(condition.astype(bits))


def bits_of(type: TensorType) -> mx.Dtype:
    """Return the integers that are as large as the elements of a tensor."""
    integers = {1: mx.int8, 2: mx.int16, 4: mx.int32, 8: mx.int64}
    return integers[type.dtype.itemsize]
