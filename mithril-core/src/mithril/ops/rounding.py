"""Rounding to whole numbers, and what kind of number a float is."""

from __future__ import annotations

from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.numbers import Ceil, Floor, IsFinite, IsInf, IsNan, Round, Trunc


def floor(x: AnyOperand) -> AnyOperand:
    """Return the largest whole number not above x."""
    return apply_one(Floor(), x)


def ceil(x: AnyOperand) -> AnyOperand:
    """Return the smallest whole number not below x."""
    return apply_one(Ceil(), x)


def round(x: AnyOperand) -> AnyOperand:
    """Return the nearest whole number; the even one of two equally near ones."""
    return apply_one(Round(), x)


def trunc(x: AnyOperand) -> AnyOperand:
    """Return the whole part of x."""
    return apply_one(Trunc(), x)


def isnan(x: AnyOperand) -> AnyOperand:
    """Return whether x is not a number."""
    return apply_one(IsNan(), x)


def isinf(x: AnyOperand) -> AnyOperand:
    """Return whether x is infinite."""
    return apply_one(IsInf(), x)


def isfinite(x: AnyOperand) -> AnyOperand:
    """Return whether x is a number and not infinite."""
    return apply_one(IsFinite(), x)


__all__ = ["ceil", "floor", "isfinite", "isinf", "isnan", "round", "trunc"]
