"""Variance and standard deviation: compositions of means, in at least float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mithril.errors import ShapeError, kind_of
from mithril.ir.operand import AnyOperand
from mithril.ops.elementwise import cast, wide_float
from mithril.ops.functions import sqrt
from mithril.ops.reading import read_flag
from mithril.ops.reduce import Axes, accumulator, mean, read_axes


def var(
    x: AnyOperand, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> AnyOperand:
    """Return the mean squared distance from the mean over some dimensions, all by default.

    Args:
        x: numbers or booleans of any shape; computed in at least float32.
        axis: the dimension, or several; None for all.
        correction: what is taken off the number of elements that is divided by; 1 for a sample.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        The dtype of x, the default float dtype (at least float32) of integers and booleans; the
        shape of x without these dimensions.

    Raises:
        ShapeError: there are not more elements than `correction`, or no such dimension.

    >>> var(backend.array([1.0, 2.0, 3.0, 6.0])).numpy().item()
    3.5
    """
    result = _wide_var(x, axis, correction, keepdims, "var")
    return cast(result, x.dtype) if x.dtype.is_float else result


def std(
    x: AnyOperand, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> AnyOperand:
    """Return the square root of the variance over some dimensions, all by default; see `var`.

    Args:
        x: numbers or booleans of any shape; computed in at least float32.
        axis: the dimension, or several; None for all.
        correction: what is taken off the number of elements that is divided by; 1 for a sample.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        The dtype of x, the default float dtype (at least float32) of integers and booleans; the
        shape of x without these dimensions.

    Raises:
        ShapeError: there are not more elements than `correction`, or no such dimension.

    >>> std(backend.array([1.0, 1.0, 5.0, 5.0])).numpy().item()
    2.0
    """
    result = sqrt(_wide_var(x, axis, correction, keepdims, "std"))
    return cast(result, x.dtype) if x.dtype.is_float else result


def _wide_var(
    x: AnyOperand, axis: Axes, correction: float, keepdims: bool, what: str
) -> AnyOperand:
    """Return the variance in at least float32: its root may be in range where it is not."""
    axes, keepdims = read_axes(axis, x.ndim, what), read_flag(keepdims, f"{what}'s keepdims")
    if not isinstance(correction, int | float | np.number):
        raise ShapeError(f"{what}'s correction is {kind_of(correction)}; give a number")
    count = math.prod(x.shape[i] for i in axes)
    if count <= correction:
        raise ShapeError(
            f"cannot take the variance of {count} elements with correction {correction}; it needs "
            f"more of them"
        )
    wide: Any = cast(x, accumulator(x.dtype) if x.dtype.is_float else wide_float(x))
    away = wide - mean(wide, axes, keepdims=True)
    result: AnyOperand = mean(away * away, axes, keepdims=keepdims) * (count / (count - correction))
    return result


__all__ = ["std", "var"]
