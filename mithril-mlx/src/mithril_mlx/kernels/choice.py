"""Choosing between two arrays element by element: the kernel of `where`.

On a CPU without Apple's libraries MLX branches at every element, which takes 25 times as long as an
addition. There the bits are chosen instead, five passes that do not branch; three where the other
array is a constant 0, as in the gradient of relu.
"""

from __future__ import annotations

import math

import mlx.core as mx
from mithril import ops
from mithril.engine.kernels.registry import Run
from mithril.types import DType, TensorType

from mithril_mlx.kernels.precision import is_vectorized
from mithril_mlx.kernels.registry import Types, kernel
from mithril_mlx.tensors import mlx_dtype, zero

SMALL = 4096
"""Elements for which a call takes longer than what it does."""


@kernel(ops.Where)
def where(op: ops.Where, types: Types) -> Run:
    """x where the condition holds, else y."""
    (result,) = op.infer(types)
    if is_vectorized() or result.dtype == DType.bool_ or math.prod(result.shape) < SMALL:
        return mx.where
    bits, dtype, nothing = bits_of(result), mlx_dtype(result.dtype), zero(result.dtype)

    def choose(condition: mx.array, x: mx.array, y: mx.array) -> mx.array:
        if y is nothing:
            return mx.view(mx.bitwise_and(mx.view(x, bits), mask(condition, bits)), dtype)
        other = mx.view(y, bits)
        differing = mx.bitwise_and(mx.bitwise_xor(mx.view(x, bits), other), mask(condition, bits))
        return mx.view(mx.bitwise_xor(other, differing), dtype)

    return choose


def mask(condition: mx.array, bits: mx.Dtype) -> mx.array:
    """Return integers of which all bits are set where a condition holds, and none elsewhere."""
    return mx.negative(condition.astype(bits))


def bits_of(type: TensorType) -> mx.Dtype:
    """Return the integers that are as large as the elements of a tensor."""
    integers = {1: mx.int8, 2: mx.int16, 4: mx.int32, 8: mx.int64}
    return integers[type.dtype.itemsize]
