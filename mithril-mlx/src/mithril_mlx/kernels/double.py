"""float64 of the functions that MLX works out in float32, whatever the dtype.

MLX has float64 on the CPU only, and its other functions are as exact there as those of C.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.polynomial import chebyshev

_FAR = 6.0  # erf is 1 beyond, to the last bit


def exp(x: Any) -> Any:
    """Return e ** x."""
    return mx.power(_number(math.e), x)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e ** -x)."""
    one = _number(1.0)
    return one / (one + mx.power(_number(math.e), -x))


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
    """Return the error function: x times a series of Chebyshev polynomials in its square."""
    near = mx.clip(x, _number(-_FAR), _number(_FAR))
    at = near * near * _number(2 / _FAR**2) - _number(1.0)
    twice, later, last = at + at, _number(0.0), _number(0.0)
    for coefficient in _SERIES[:0:-1]:  # Clenshaw's recurrence
        last, later = twice * last - later + _number(coefficient), last
    return near * (at * last - later + _number(_SERIES[0]))


def _number(value: float) -> mx.array:
    return mx.array(value, dtype=mx.float64)


def _slope(at: Any) -> Any:
    """Return erf(x) / x, where `at` from -1 to 1 stands for squares of x up to the far one."""
    x = np.sqrt((at + 1) / 2) * _FAR
    return np.array([math.erf(value) / value for value in x])


_SERIES: list[float] = chebyshev.chebinterpolate(_slope, 56).tolist()
