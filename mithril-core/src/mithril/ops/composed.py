"""Matrices, products and lengths: functions that are short compositions of other ops.

They have no op of their own: rules, gradients and kernels are those of their pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mithril.errors import ShapeError
from mithril.ir.operand import AnyOperand, Operand
from mithril.ops.choice import (
    equal,
    greater,
    greater_equal,
    keep_where,
    less,
    logical_and,
    logical_not,
    logical_or,
    where,
)
from mithril.ops.functions import sqrt
from mithril.ops.index import iota
from mithril.ops.linalg import matmul
from mithril.ops.reading import read_integer, read_integers
from mithril.ops.reduce import sum
from mithril.ops.rounding import isinf
from mithril.ops.shape import normalize_axis, reshape, transpose
from mithril.ops.wide import compute_wide


def tril(x: AnyOperand, k: int = 0) -> AnyOperand:
    """Return the lower triangles of matrices, zeros above the k-th diagonal.

    Args:
        x: [..., rows, columns], of any dtype.
        k: the last diagonal to keep: 0 for the main one, positive above it.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x has fewer than two dimensions.

    >>> tril(backend.array([[1, 2], [3, 4]])).numpy()
    array([[1, 0],
           [3, 4]], dtype=int32)
    """
    return keep_where(_is_lower(x, read_integer(k, "tril's k"), "tril"), x)


def triu(x: AnyOperand, k: int = 0) -> AnyOperand:
    """Return the upper triangles of matrices, zeros below the k-th diagonal.

    Args:
        x: [..., rows, columns], of any dtype.
        k: the first diagonal to keep: 0 for the main one, positive above it.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x has fewer than two dimensions.

    >>> triu(backend.array([[1, 2], [3, 4]])).numpy()
    array([[1, 2],
           [0, 4]], dtype=int32)
    """
    below = _is_lower(x, read_integer(k, "triu's k") - 1, "triu")
    return keep_where(logical_not(below), x)


def outer(x: Any, y: Any) -> Any:
    """Return the products of every element of vector x with every element of vector y.

    Args:
        x: numbers [rows].
        y: numbers [columns].

    Returns:
        [rows, columns], of the dtype that x and y are promoted to.

    Raises:
        ShapeError: an operand is no vector, or dtypes are of different kinds (int32 and float32,
            say).

    >>> outer(backend.array([1, 2]), backend.array([10, 20, 30])).numpy()
    array([[10, 20, 30],
           [20, 40, 60]], dtype=int32)
    """
    for operand in (x, y):
        if not isinstance(operand, Operand) or operand.ndim != 1:
            shown = operand.type if isinstance(operand, Operand) else repr(operand)
            raise ShapeError(f"outer takes two vectors, not {shown}; reshape it first")
    return reshape(x, (-1, 1)) * reshape(y, (1, -1))


def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    """Return the sum over products of x and y along a dimension.

    Args:
        x: numbers of at least one dimension.
        y: the same; shapes are broadcast.
        axis: the dimension of the broadcast shape; a negative one counts from the end.

    Returns:
        The broadcast shape without the dimension; the dtype that x and y are promoted to, int32 of
        booleans and integers of less than 32 bits.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or there is no such dimension.

    >>> vecdot(backend.array([[1.0, 2.0], [3.0, 4.0]]), backend.array([1.0, 10.0])).numpy()
    array([21., 43.], dtype=float32)
    """
    return sum(x * y, axis)


def tensordot(
    x: Any, y: Any, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2
) -> Any:
    """Return the sum over products of x and y over pairs of dimensions, as in `numpy.tensordot`.

    Args:
        x: floats of any shape.
        y: floats; both are promoted to one dtype.
        axes: how many of the last dimensions of x meet the first ones of y; or a pair, of the
            dimensions of x and those of y, each a list or one dimension.

    Returns:
        The dimensions of x that are not summed over, then those of y.

    Raises:
        ShapeError: the lists differ in length, sizes do not fit, an operand has fewer dimensions
            than are named, or does not hold floats.

    >>> x, y = backend.ones((2, 3, 4)), backend.ones((4, 3, 5))
    >>> tensordot(x, y, 1).shape, tensordot(x, y, ([2, 1], [0, 1])).shape
    ((2, 3, 3, 5), (2, 5))
    """
    left, right = _pair_axes(x, y, axes)
    if [x.shape[i] for i in left] != [y.shape[i] for i in right]:
        raise ShapeError(
            f"tensordot contracts dimensions {left} of {x.type} with {right} of {y.type}; their "
            f"sizes must be equal"
        )
    rows = [i for i in range(x.ndim) if i not in left]
    columns = [i for i in range(y.ndim) if i not in right]
    inner = math.prod(x.shape[i] for i in left)
    shape = [x.shape[i] for i in rows] + [y.shape[i] for i in columns]
    matrix = reshape(transpose(x, [*rows, *left]), (math.prod(shape[: len(rows)]), inner))
    other = reshape(transpose(y, [*right, *columns]), (inner, math.prod(shape[len(rows) :])))
    return reshape(matmul(matrix, other), shape)


def _pair_axes(x: Operand, y: Operand, axes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the dimensions of x and y that `tensordot` contracts."""
    if isinstance(axes, list | tuple):
        if len(axes) != 2:
            raise ShapeError(f"tensordot has axes {axes!r}; give one list for each operand")
        given = zip((x, y), axes, strict=True)
        left, right = (
            tuple(
                normalize_axis(i, operand.ndim, "tensordot")
                for i in read_integers(dims, "tensordot's axes")
            )
            for operand, dims in given
        )
        return left, right
    count = read_integer(axes, "tensordot's axes")
    if not 0 <= count <= min(x.ndim, y.ndim):
        raise ShapeError(
            f"tensordot contracts {count} dimensions of {x.type} and {y.type}; give 0 to "
            f"{min(x.ndim, y.ndim)}, or a pair of lists"
        )
    return tuple(range(x.ndim - count, x.ndim)), tuple(range(count))


def hypot(x: Any, y: Any) -> Any:
    """Return the length of the vector (x, y), element by element, without overflow.

    Args:
        x: floats of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, and the dtype that they are promoted to; 16-bit floats
        are computed in float32.

    Raises:
        ShapeError: shapes do not broadcast, or an operand does not hold floats.

    >>> hypot(backend.array([3.0, 1e30]), backend.array([4.0, 0.0])).numpy()
    array([5.e+00, 1.e+30], dtype=float32)
    """

    def compute(x: Any, y: Any) -> Any:
        is_zero = logical_and(equal(x, 0.0), equal(y, 0.0))
        is_infinite = logical_or(isinf(x), isinf(y))
        x, y = (where(is_infinite, 1.0, where(less(side, 0.0), -side, side)) for side in (x, y))
        # One condition chooses both, and signs are kept apart of 0 alone: with `maximum` and `abs`
        # second derivatives would be 0 on the diagonal and on the axes.
        is_steep = greater(y, x)
        larger, smaller = where(is_steep, y, x), where(is_steep, x, y)
        ratio = smaller / where(is_zero, 1.0, larger)
        length = where(is_zero, 0.0, larger * sqrt(1.0 + ratio * ratio))
        return where(is_infinite, math.inf, length)

    return compute_wide("hypot", compute, x, y)


def trace(x: Any) -> Any:
    """Return the sums of the diagonals of matrices.

    Args:
        x: numbers or booleans [..., rows, columns].

    Returns:
        [...], of the dtype of x, int32 of booleans and integers of less than 32 bits.

    Raises:
        ShapeError: x has fewer than two dimensions.

    >>> trace(backend.array([[1, 2], [3, 4]])).numpy().item()
    5
    """
    _require_matrix(x, "trace")
    row, column = _places(x)
    return sum(keep_where(row == column, x), (-2, -1))


def positive(x: AnyOperand) -> AnyOperand:
    """Return x.

    Args:
        x: any tensor.

    Returns:
        x itself.

    >>> positive(backend.array([-1, 2])).numpy()
    array([-1,  2], dtype=int32)
    """
    return x


def _is_lower(x: AnyOperand, k: int, what: str) -> AnyOperand:
    _require_matrix(x, what)
    row, column = _places(x)
    lower: AnyOperand = greater_equal(row + read_integer(k, f"{what}'s k"), column)
    return lower


def _places(x: AnyOperand) -> tuple[AnyOperand, AnyOperand]:
    shape = x.shape[-2:]
    return iota(x, shape, 0), iota(x, shape, 1)


def _require_matrix(x: Operand, what: str) -> None:
    if x.ndim < 2:
        raise ShapeError(f"{what} takes matrices, not {x.type}; it needs two dimensions")


__all__ = ["hypot", "outer", "positive", "tensordot", "trace", "tril", "triu", "vecdot"]
