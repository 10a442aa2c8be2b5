"""Inverse trigonometric and inverse hyperbolic functions, as compositions of other ops.

They have no op of their own: rules, gradients and kernels are those of their pieces. Formulas are
those that lose no digits at the ends of their domains, near 0 and far from it, with gradients that
are right there, too: `where` chooses operands before it chooses results, since a result that is not
chosen would give its gradient NaN times 0. 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mithril.ops.choice import equal, greater, less, logical_and, where
from mithril.ops.functions import abs, log, sign, sqrt
from mithril.ops.numbers import arctan, log1p
from mithril.ops.rounding import isinf
from mithril.ops.wide import compute_wide
from mithril.types import DType


def arcsin(x: Any) -> Any:
    """Return the angle whose sine is x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x, in radians from -pi / 2 to pi / 2; NaN outside of -1 to 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> arcsin(backend.array([0.5, 1.0])).numpy().round(4)
    array([0.5236, 1.5708], dtype=float32)
    """
    return compute_wide("arcsin", lambda x: 2.0 * arctan(x / (1.0 + _cosine(x))), x)


def arccos(x: Any) -> Any:
    """Return the angle whose cosine is x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x, in radians from 0 to pi; NaN outside of -1 to 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> arccos(backend.array([0.5, -1.0])).numpy().round(4)
    array([1.0472, 3.1416], dtype=float32)
    """

    def compute(x: Any) -> Any:
        size = where(less(x, 0.0), -x, x)
        angle = 2.0 * arctan(sqrt(1.0 - size) / sqrt(1.0 + size))
        return where(less(x, 0.0), math.pi - angle, angle)

    return compute_wide("arccos", compute, x)


def arctan2(y: Any, x: Any) -> Any:
    """Return the angle of the point (x, y), element by element, in all four quadrants.

    Args:
        y: floats of any shape.
        x: floats; shapes are broadcast.

    Returns:
        The shape that x and y broadcast to, and the dtype that they are promoted to; radians from
        -pi to pi, of the sign of y, that of a zero, too.

    Raises:
        ShapeError: shapes do not broadcast, or an operand is not of a float dtype.

    >>> arctan2(backend.array([1.0, -1.0]), backend.array([0.0, -1.0])).numpy().round(4)
    array([ 1.5708, -2.3562], dtype=float32)
    """

    def compute(y: Any, x: Any) -> Any:
        is_steep = greater(abs(y), abs(x))
        near, far = where(is_steep, x, y), where(is_steep, y, x)
        is_infinite = logical_and(isinf(near), isinf(far))
        near = where(is_infinite, sign(near), near)
        far = where(is_infinite, sign(far), where(equal(far, 0.0), 1.0, far))
        angle, side = arctan(near / far), where(_is_negative(y), -1.0, 1.0)
        flat = where(_is_negative(x), angle + side * math.pi, angle)
        return where(is_steep, side * (math.pi / 2) - angle, flat)

    return compute_wide("arctan2", compute, y, x)


def arcsinh(x: Any) -> Any:
    """Return the number whose hyperbolic sine is x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> arcsinh(backend.array([0.0, 1.0])).numpy().round(4)
    array([0.    , 0.8814], dtype=float32)
    """

    def compute(x: Any) -> Any:
        size = where(less(x, 0.0), -x, x)
        found = _unless_large(size, lambda u: log1p(u * (1.0 + u / (1.0 + sqrt(1.0 + u * u)))))
        return where(less(x, 0.0), -found, found)

    return compute_wide("arcsinh", compute, x)


def arccosh(x: Any) -> Any:
    """Return the number, 0 or more, whose hyperbolic cosine is x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x; NaN below 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> arccosh(backend.array([1.0, 2.0])).numpy().round(4)
    array([0.   , 1.317], dtype=float32)
    """

    def compute(x: Any) -> Any:
        return _unless_large(x, lambda u: log1p(u - 1.0 + sqrt(u - 1.0) * sqrt(u + 1.0)))

    return compute_wide("arccosh", compute, x)


def arctanh(x: Any) -> Any:
    """Return the number whose hyperbolic tangent is x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x; NaN outside of -1 to 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> arctanh(backend.array([0.0, 0.5])).numpy().round(4)
    array([0.    , 0.5493], dtype=float32)
    """
    return compute_wide("arctanh", lambda x: 0.5 * (log1p(x) - log1p(-x)), x)


def _cosine(sine: Any) -> Any:
    """Return sqrt(1 - x * x) without cancellation; at 1 its gradient is infinite, not NaN."""
    return sqrt(1.0 - sine) * sqrt(1.0 + sine)


def _unless_large(x: Any, function: Callable[[Any], Any]) -> Any:
    """Return log(2 x) where x is so large that 1 / x**2 is lost, and a function of x elsewhere."""
    is_large = greater(x, 2.0**27 if x.dtype is DType.float64 else 2.0**12)
    far: Any = log(where(is_large, x, 1.0)) + math.log(2)
    return where(is_large, far, function(where(is_large, 1.0, x)))


def _is_negative(x: Any) -> Any:
    """Return whether x is below 0, or the zero that is."""
    is_zero = equal(x, 0.0)
    return less(where(is_zero, 1.0 / where(is_zero, x, 1.0), x), 0.0)


__all__ = [
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan2",
    "arctanh",
]  # fmt: skip
