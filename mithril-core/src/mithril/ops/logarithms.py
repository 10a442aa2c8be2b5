"""Logarithms to the bases 2 and 10, and that of a sum, as compositions of other ops.

They have no op of their own: rules, gradients and kernels are those of their pieces. 16-bit floats
are computed in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mithril.ops.arithmetic import power
from mithril.ops.choice import equal, greater, logical_and, stop_gradient, where
from mithril.ops.elementwise import cast
from mithril.ops.functions import exp, log
from mithril.ops.numbers import clip, log1p
from mithril.ops.rounding import isinf, round
from mithril.ops.wide import compute_wide


def log2(x: Any) -> Any:
    """Return the logarithm of x to the base 2, element by element; of a power of 2 its exponent.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x; -inf of 0, NaN of what is negative.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> log2(backend.array([8.0, 10.0])).numpy().round(4)
    array([3.    , 3.3219], dtype=float32)
    """
    return compute_wide("log2", lambda wide: _log_to_base(wide, 2.0), x)


def log10(x: Any) -> Any:
    """Return the logarithm of x to the base 10, element by element; of a power of 10 its exponent.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x; -inf of 0, NaN of what is negative.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> log10(backend.array([1000.0, 20.0])).numpy().round(4)
    array([3.   , 1.301], dtype=float32)
    """
    return compute_wide("log10", lambda wide: _log_to_base(wide, 10.0), x)


def logaddexp(x: Any, y: Any) -> Any:
    """Return log(exp(x) + exp(y)), without overflow; of two infinities of one sign that one.

    Args:
        x: floats of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        Floats of the shape that x and y broadcast to, of the dtype they are promoted to; 16-bit
        floats are computed in float32.

    Raises:
        ShapeError: shapes do not broadcast, or an operand does not hold floats.

    >>> logaddexp(backend.array([0.0, 100.0]), 0.0).numpy().round(4)
    array([  0.6931, 100.    ], dtype=float32)
    """

    def compute(left: Any, right: Any) -> Any:
        are_infinite = logical_and(equal(left, right), isinf(left))
        apart = where(are_infinite, 0.0, left - right)
        # Of equal numbers all terms take the right one for the larger, as in softplus at 0; of
        # equal infinities, whose difference is no number, each has half the gradient.
        is_more = greater(left, right)
        sign = cast(where(is_more, -1.0, 1.0), left.dtype)
        larger = where(are_infinite, (left + right) * 0.5, where(is_more, left, right))
        return larger + log1p(exp(apart * sign))

    return compute_wide("logaddexp", compute, x, y)


def _log_to_base(x: Any, base: float) -> Any:
    """Return the nearest whole number n, plus the logarithm of x / base ** n.

    log(x) / log(base) alone is no whole number for many powers of the base (for 1000 and 10, say).
    Of a power x / base ** n is 1, or so near that only the n is left of the sum.
    """
    # Powers up to these bounds have all their digits: they are neither infinite nor subnormal.
    bound = int((np.finfo(x.dtype.numpy).maxexp - 2) / math.log2(base))
    scale = math.log(base)
    whole = stop_gradient(clip(round(log(x) / scale), float(-bound), float(bound)))
    return whole + log(x / stop_gradient(power(base, whole))) / scale


__all__ = ["log2", "log10", "logaddexp"]
