"""Functions that apply the ops of `order` to operands."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from mithril.ir.operand import AnyOperand, apply, apply_one
from mithril.ops.order import Argsort, Cumsum, Flip, Prod, Sort, TakeAlong, TopK
from mithril.ops.reduce import Axes, read_axes
from mithril.ops.shape import normalize_axis


def prod(x: AnyOperand, axis: Axes = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the product over some dimensions, all by default."""
    return apply_one(Prod(read_axes(axis, x.ndim, "prod"), keepdims), x)


def cumsum(x: AnyOperand, axis: int = -1, *, reverse: bool = False) -> AnyOperand:
    """Return the sum of all elements up to each one along a dimension."""
    return apply_one(Cumsum(normalize_axis(axis, x.ndim, "cumsum"), reverse), x)


def sort(x: AnyOperand, axis: int = -1, *, descending: bool = False) -> AnyOperand:
    """Return the elements in order along a dimension."""
    return apply_one(Sort(normalize_axis(axis, x.ndim, "sort"), bool(descending)), x)


def argsort(x: AnyOperand, axis: int = -1, *, descending: bool = False) -> AnyOperand:
    """Return the int32 positions that put the elements in order; equal ones keep theirs."""
    return apply_one(Argsort(normalize_axis(axis, x.ndim, "argsort"), bool(descending)), x)


def top_k(x: AnyOperand, k: int, axis: int = -1) -> tuple[AnyOperand, AnyOperand]:
    """Return the k largest elements along a dimension, largest first, and their positions.

    Raises:
        ShapeError: k is not from 1 to the size of the dimension.
    """
    values, positions = apply(TopK(normalize_axis(axis, x.ndim, "top_k"), operator.index(k)), x)
    return values, positions


def flip(x: AnyOperand, axis: int | Sequence[int] | None = None) -> AnyOperand:
    """Return the elements in the opposite order along some dimensions, all by default."""
    return apply_one(Flip(read_axes(axis, x.ndim, "flip")), x)


def take_along(x: AnyOperand, indices: AnyOperand, axis: int = -1) -> AnyOperand:
    """Return the elements at positions along a dimension, row by row.

    Args:
        x: any tensor.
        indices: integers from 0, in the shape of x except along the dimension.
        axis: the dimension.

    Raises:
        ShapeError: the shapes do not fit, or the indices are not integers.
    """
    return apply_one(TakeAlong(normalize_axis(axis, x.ndim, "take_along")), x, indices)


__all__ = ["argsort", "cumsum", "flip", "prod", "sort", "take_along", "top_k"]
