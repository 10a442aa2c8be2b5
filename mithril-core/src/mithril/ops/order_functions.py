"""Functions that apply the ops of `order` and `running` to operands."""

from __future__ import annotations

from collections.abc import Sequence

from mithril.ir.operand import AnyOperand, apply, apply_one
from mithril.ops.order import Argsort, Flip, Sort, TakeAlong, TopK
from mithril.ops.reading import read_flag, read_integer
from mithril.ops.reduce import Axes, read_axes
from mithril.ops.running import Cumprod, Cumsum, Prod
from mithril.ops.shape import normalize_axis


def prod(x: AnyOperand, axis: Axes = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the product over some dimensions, all by default.

    Args:
        x: numbers or booleans of any shape.
        axis: the dimension, or several; None for all.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        The dtype of x, int32 of booleans and integers of less than 32 bits; the shape of x without
        these dimensions.

    Raises:
        ShapeError: a dimension does not exist, or is named twice.

    >>> x = backend.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> prod(x, 1).numpy()
    array([  6., 120.], dtype=float32)
    """
    keepdims = read_flag(keepdims, "prod's keepdims")
    return apply_one(Prod(read_axes(axis, x.ndim, "prod"), keepdims), x)


def cumsum(x: AnyOperand, axis: int = -1, *, reverse: bool = False) -> AnyOperand:
    """Return the sum of all elements up to each one along a dimension.

    Args:
        x: numbers or booleans of at least one dimension.
        axis: the dimension; a negative one counts from the end.
        reverse: whether to add up from the end.

    Returns:
        The shape of x; its dtype, int32 of booleans and integers of less than 32 bits.

    Raises:
        ShapeError: there is no such dimension.

    >>> cumsum(backend.array([1, 2, 3])).numpy()
    array([1, 3, 6], dtype=int32)
    """
    reverse = read_flag(reverse, "cumsum's reverse")
    return apply_one(Cumsum(normalize_axis(axis, x.ndim, "cumsum"), reverse), x)


def cumprod(x: AnyOperand, axis: int = -1, *, reverse: bool = False) -> AnyOperand:
    """Return the product of all elements up to each one along a dimension.

    Args:
        x: numbers or booleans of at least one dimension.
        axis: the dimension; a negative one counts from the end.
        reverse: whether to multiply up from the end.

    Returns:
        The shape of x; its dtype, int32 of booleans and integers of less than 32 bits.

    Raises:
        ShapeError: there is no such dimension.

    >>> cumprod(backend.array([1, 2, 3])).numpy()
    array([1, 2, 6], dtype=int32)
    """
    reverse = read_flag(reverse, "cumprod's reverse")
    return apply_one(Cumprod(normalize_axis(axis, x.ndim, "cumprod"), reverse), x)


def sort(x: AnyOperand, axis: int = -1, *, descending: bool = False) -> AnyOperand:
    """Return the elements in order along a dimension.

    Args:
        x: numbers or booleans of at least one dimension.
        axis: the dimension; a negative one counts from the end.
        descending: whether the largest comes first; NaN comes last either way.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: there is no such dimension.

    >>> sort(backend.array([3.0, 1.0, 2.0])).numpy()
    array([1., 2., 3.], dtype=float32)
    """
    descending = read_flag(descending, "sort's descending")
    return apply_one(Sort(normalize_axis(axis, x.ndim, "sort"), descending), x)


def argsort(x: AnyOperand, axis: int = -1, *, descending: bool = False) -> AnyOperand:
    """Return the positions that put the elements in order along a dimension.

    Args:
        x: numbers or booleans of at least one dimension.
        axis: the dimension; a negative one counts from the end.
        descending: whether the largest comes first.

    Returns:
        int32, counted from 0, of the shape of x; of equal elements the first one comes first.

    Raises:
        ShapeError: there is no such dimension.

    >>> argsort(backend.array([3.0, 1.0, 2.0])).numpy()
    array([1, 2, 0], dtype=int32)
    """
    descending = read_flag(descending, "argsort's descending")
    return apply_one(Argsort(normalize_axis(axis, x.ndim, "argsort"), descending), x)


def top_k(x: AnyOperand, k: int, axis: int = -1) -> tuple[AnyOperand, AnyOperand]:
    """Return the k largest elements along a dimension, largest first, and their positions.

    Args:
        x: numbers of at least one dimension.
        k: how many, from 1 to the size of the dimension.
        axis: the dimension; a negative one counts from the end.

    Returns:
        The elements in the dtype of x and their positions in int32, both of the shape of x with k
        along the dimension. Of equal elements the first one comes first.

    Raises:
        ShapeError: k is out of range, or there is no such dimension.

    >>> values, positions = top_k(backend.array([3, 1, 4, 2]), 2)
    >>> values.numpy(), positions.numpy()
    (array([4, 3], dtype=int32), array([2, 0], dtype=int32))
    """
    wanted = read_integer(k, "top_k's k")
    values, positions = apply(TopK(normalize_axis(axis, x.ndim, "top_k"), wanted), x)
    return values, positions


def flip(x: AnyOperand, axis: int | Sequence[int] | None = None) -> AnyOperand:
    """Return the elements in the opposite order along some dimensions, all by default.

    Args:
        x: any tensor.
        axis: the dimension, or several; None for all.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: a dimension does not exist, or is named twice.

    >>> flip(backend.array([[1, 2], [3, 4]]), 1).numpy()
    array([[2, 1],
           [4, 3]], dtype=int32)
    """
    return apply_one(Flip(read_axes(axis, x.ndim, "flip")), x)


def take_along(x: AnyOperand, indices: AnyOperand, axis: int = -1) -> AnyOperand:
    """Return the elements at positions along a dimension, row by row.

    Args:
        x: any tensor of at least one dimension.
        indices: integers from 0, in the shape of x except along the dimension.
        axis: the dimension; a negative one counts from the end.

    Returns:
        The dtype of x and the shape of the indices.

    Raises:
        ShapeError: the shapes do not fit, the indices are not integers, or, when they are run, lie
            outside the dimension.

    >>> take_along(backend.array([[1, 2, 3], [4, 5, 6]]), backend.array([[2], [0]])).numpy()
    array([[3],
           [4]], dtype=int32)
    """
    return apply_one(TakeAlong(normalize_axis(axis, x.ndim, "take_along")), x, indices)


__all__ = ["argsort", "cumprod", "cumsum", "flip", "prod", "sort", "take_along", "top_k"]
