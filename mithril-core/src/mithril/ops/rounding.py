"""Rounding to whole numbers, and what kind of number a float is."""

from __future__ import annotations

from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.numbers import Ceil, Floor, IsFinite, IsInf, IsNan, Round, Trunc


def floor(x: AnyOperand) -> AnyOperand:
    """Return the largest whole number not above x, element by element.

    Args:
        x: numbers of any shape.

    Returns:
        The shape and dtype of x; integers as they are.

    Raises:
        ShapeError: x is boolean.

    >>> floor(backend.array([-1.5, 0.5, 2.5])).numpy()
    array([-2.,  0.,  2.], dtype=float32)
    """
    return apply_one(Floor(), x)


def ceil(x: AnyOperand) -> AnyOperand:
    """Return the smallest whole number not below x, element by element.

    Args:
        x: numbers of any shape.

    Returns:
        The shape and dtype of x; integers as they are.

    Raises:
        ShapeError: x is boolean.

    >>> ceil(backend.array([-1.5, 0.5, 2.5])).numpy()
    array([-1.,  1.,  3.], dtype=float32)
    """
    return apply_one(Ceil(), x)


def round(x: AnyOperand) -> AnyOperand:
    """Return the nearest whole number, the even one of two equally near ones, element by element.

    Args:
        x: numbers of any shape.

    Returns:
        The shape and dtype of x; integers as they are.

    Raises:
        ShapeError: x is boolean.

    >>> round(backend.array([0.5, 1.5, 2.6])).numpy()
    array([0., 2., 3.], dtype=float32)
    """
    return apply_one(Round(), x)


def trunc(x: AnyOperand) -> AnyOperand:
    """Return the whole part of x, element by element.

    Args:
        x: numbers of any shape.

    Returns:
        The shape and dtype of x; integers as they are.

    Raises:
        ShapeError: x is boolean.

    >>> trunc(backend.array([-1.5, 2.5])).numpy()
    array([-1.,  2.], dtype=float32)
    """
    return apply_one(Trunc(), x)


def isnan(x: AnyOperand) -> AnyOperand:
    """Return whether x is not a number, element by element.

    Args:
        x: floats of any shape.

    Returns:
        Booleans of the shape of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> isnan(backend.array([1.0, float("inf"), float("nan")])).numpy()
    array([False, False,  True])
    """
    return apply_one(IsNan(), x)


def isinf(x: AnyOperand) -> AnyOperand:
    """Return whether x is inf or -inf, element by element.

    Args:
        x: floats of any shape.

    Returns:
        Booleans of the shape of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> isinf(backend.array([1.0, float("inf"), float("nan")])).numpy()
    array([False,  True, False])
    """
    return apply_one(IsInf(), x)


def isfinite(x: AnyOperand) -> AnyOperand:
    """Return whether x is a number and not infinite, element by element.

    Args:
        x: floats of any shape.

    Returns:
        Booleans of the shape of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> isfinite(backend.array([1.0, float("inf"), float("nan")])).numpy()
    array([ True, False, False])
    """
    return apply_one(IsFinite(), x)


__all__ = ["ceil", "floor", "isfinite", "isinf", "isnan", "round", "trunc"]
