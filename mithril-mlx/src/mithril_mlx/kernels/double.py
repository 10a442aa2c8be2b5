"""float64 of the functions that MLX works out in float32, whatever the dtype.

MLX has float64 on the CPU only, and its other functions are as exact there as those of C.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.polynomial import chebyshev

_NEAR, _FAR = 1.5, 6.0  # erf is 1 beyond the far one, to the last bit
_SMALLEST = -700.0  # e ** x is near the smallest number that has all its digits


def exp(x: Any) -> Any:
    """Return e ** x, from e ** |x| - 1, which MLX has to the last bit; 2 units in it at most."""
    small = x < _number(_SMALLEST)
    half = mx.where(small, x * _number(0.5), x)
    one = _number(1.0)
    grown = one + mx.expm1(mx.abs(half))
    found = mx.where(half < _number(0.0), one / grown, grown)
    return mx.where(small, found * found, found)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e ** -x)."""
    one, power = _number(1.0), exp(-mx.abs(x))
    return mx.where(x < _number(0.0), power, one) / (one + power)


def sin(x: Any) -> Any:
    """Return the sine, from the tangent of half the angle."""
    half = mx.tan(x * _number(0.5))
    return (half + half) / (_number(1.0) + half * half)


def cos(x: Any) -> Any:
    """Return the cosine, from the tangent of half the angle."""
    half, one = mx.tan(x * _number(0.5)), _number(1.0)
    square = half * half
    return (one - square) / (one + square)


def erf(x: Any) -> Any:
    """Return the error function, 3 units in the last bit off at most.

    Near 0 it is Taylor's series. Farther off a series of Chebyshev polynomials gives
    e ** x^2 (1 - erf(x)).
    """
    size = mx.minimum(mx.abs(x), _number(_FAR))
    square = size * size
    slope = _number(_TAYLOR[-1])
    for coefficient in _TAYLOR[-2::-1]:
        slope = slope * square + _number(coefficient)
    near = x * slope
    to_unit = (2 / (_FAR - _NEAR), (_FAR + _NEAR) / (_FAR - _NEAR))
    rest = _sum_series(size * _number(to_unit[0]) - _number(to_unit[1]), _RESTS)
    far = _number(1.0) - exp(-square) * rest
    far = mx.where(x < _number(0.0), -far, far)
    return mx.where(mx.isnan(x), x, mx.where(size < _number(_NEAR), near, far))


def _sum_series(at: Any, coefficients: list[float]) -> Any:
    """Return a series of Chebyshev polynomials by Clenshaw's recurrence."""
    twice, later, last = at + at, _number(0.0), _number(0.0)
    for coefficient in coefficients[:0:-1]:
        last, later = twice * last - later + _number(coefficient), last
    return at * last - later + _number(coefficients[0])


def _number(value: float) -> mx.array:
    return mx.array(value, dtype=mx.float64)


def _rest(at: Any) -> Any:
    """Return e ** x^2 (1 - erf(x)), where `at` from -1 to 1 stands for x between near and far."""
    x = (at * (_FAR - _NEAR) + _FAR + _NEAR) / 2
    return np.array([math.erfc(value) * math.exp(value**2) for value in x])


_TAYLOR = [
    (-1) ** n * 2 / (math.sqrt(math.pi) * math.factorial(n) * (2 * n + 1)) for n in range(27)
]
_RESTS: list[float] = chebyshev.chebinterpolate(_rest, 24).tolist()
