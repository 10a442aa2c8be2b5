"""The exponential and the error function of a dtype, and the sums that softmax and its kin take.

On the GPU and on Apple's processors MLX works out several numbers at once. Elsewhere it calls C for
each, and its power takes a third of the time of its exponential, 25 additions instead of 75; its
error function takes as long as 160, the quotient of polynomials here 25.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
from mithril.spi import DType, TensorType

from mithril_mlx.kernels import double
from mithril_mlx.kernels.precision import is_vectorized, on_gpu

Change = Callable[[mx.array], mx.array]

_PARTS = 32
"""e ** x is (e ** 32) ** (x / 32): the quotient is exact, and of the error of the base, which has
to be a float32, hardly anything is left."""

# The error function as x P(x^2) / Q(x^2), highest power first, as Eigen has it. Where x is cut off
# the quotient is 1 to the last bit. Largest error against math.erf is 3.3e-7, relative too.
_ABOVE = (2.1237322e-06, 2.8619796e-04, 3.6580483e-03, 5.2433021e-02, 1.8741608e-01, 1.1283791e00)
_BELOW = (3.8918573e-05, 1.1432960e-03, 1.4752088e-02, 1.1294568e-01, 4.9942580e-01, 1.0)
_FAR = 3.725
_PART, _MOST_PARTS = 2**16, 8
"""Of numbers: the least that is worth the calls, and into how many parts at most."""


def exponential(of: TensorType) -> Change:
    """Return the function e ** x of tensors of a type."""
    if of.dtype == DType.float64:
        return double.exp
    return mx.exp if of.dtype != DType.float32 or is_vectorized() else _exp


def error_function(of: TensorType) -> Change:
    """Return the error function of tensors of a type."""
    if of.dtype == DType.float64:
        return double.erf
    return mx.erf if of.dtype != DType.float32 or is_vectorized() else _erf


def sigmoid(of: TensorType) -> Change:
    """Return the function 1 / (1 + e ** -x) of tensors of a type."""
    if of.dtype == DType.float64:
        return double.sigmoid
    if of.dtype != DType.float32 or is_vectorized():
        return mx.sigmoid
    return lambda x: 1.0 / (1.0 + _exp(-x))


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


_BASE = mx.array(math.exp(_PARTS), dtype=mx.float32)


def _exp(x: mx.array) -> mx.array:
    return mx.power(_BASE, x * (1 / _PARTS))


def _erf(x: mx.array) -> mx.array:
    """Long ones part by part: what is in between is held of one part alone, in a near cache."""
    count = min(_MOST_PARTS, x.size // _PART)
    if count < 2:
        return _erf_at_once(x)
    made: list[mx.array] = []
    for part in mx.split(x.reshape(-1), [x.size * i // count for i in range(1, count)]):
        (waiting,) = mx.depends([part], made[-1:]) if made else (part,)
        made.append(_erf_at_once(waiting))
    return mx.concatenate(made).reshape(x.shape)


def _erf_at_once(x: mx.array) -> mx.array:
    x = mx.clip(x, -_FAR, _FAR)
    square = x * x
    return x * _polynomial(square, _ABOVE) / _polynomial(square, _BELOW)


def _polynomial(x: mx.array, coefficients: tuple[float, ...]) -> mx.array:
    total = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        total = total * x + coefficient
    return total
