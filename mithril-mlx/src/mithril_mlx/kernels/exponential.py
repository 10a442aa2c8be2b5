"""The exponential of a dtype, and the sums of exponentials that softmax and its kin are made of."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from mithril.types import DType, TensorType

from mithril_mlx.kernels import double
from mithril_mlx.kernels.precision import on_gpu

Change = Callable[[mx.array], mx.array]


def exponential(of: TensorType) -> Change:
    """Return the function e ** x of tensors of a type."""
    return double.exp if of.dtype == DType.float64 else mx.exp


def softmax_along(axis: int, of: TensorType) -> Change:
    """Return the softmax of tensors of a type along a dimension."""
    if on_gpu():
        return lambda x: mx.softmax(x, axis=axis)
    exp = exponential(of)

    def run(x: mx.array) -> mx.array:
        powers = exp(x - mx.max(x, axis=axis, keepdims=True))
        return powers / mx.sum(powers, axis=axis, keepdims=True)

    return run


def log_sum_exp(axis: int, of: TensorType) -> Change:
    """Return the logarithm of the sum of exponentials along a dimension, which is kept."""
    if on_gpu():
        return lambda x: mx.logsumexp(x, axis=axis, keepdims=True)
    exp = exponential(of)

    def run(x: mx.array) -> mx.array:
        top = mx.max(x, axis=axis, keepdims=True)
        return mx.log(mx.sum(exp(x - top), axis=axis, keepdims=True)) + top

    return run
