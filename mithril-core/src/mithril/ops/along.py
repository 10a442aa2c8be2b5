"""Repeats, differences, counts and grids: short compositions of other ops along dimensions.

They have no op of their own: rules, gradients and kernels are those of their pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mithril.errors import OptionError, ShapeError
from mithril.ops.choice import not_equal
from mithril.ops.elementwise import broadcast_shape, meet
from mithril.ops.index import iota, take
from mithril.ops.reading import read_integer, read_integers
from mithril.ops.reduce import sum
from mithril.ops.shape import broadcast_to, concatenate, normalize_axis, reshape
from mithril.types import DType

Axes = int | Sequence[int] | None


def repeat_elements(x: Any, repeats: int | Sequence[int], axis: int | None = None) -> Any:
    """Return x with each element repeated, one after another, as in `numpy.repeat`.

    Args:
        x: any tensor.
        repeats: how often, for all elements or for each along the dimension.
        axis: the dimension, a negative one counts from the end; by default x is flat.

    Returns:
        The dtype of x; the sum of repeats along the dimension.

    Raises:
        ShapeError: a number of repeats is negative or no integer, there are not as many as
            elements, or there is no such dimension.

    >>> x = backend.array([[1, 2], [3, 4]])
    >>> repeat_elements(x, 2, 1).numpy()
    array([[1, 1, 2, 2],
           [3, 3, 4, 4]], dtype=int32)
    >>> repeat_elements(x, [1, 2], 0).numpy()[:, 0]
    array([1, 3, 3], dtype=int32)
    """
    if axis is None:
        x, axis = reshape(x, (-1,)) if x.ndim != 1 else x, 0
    at, counts = normalize_axis(axis, x.ndim, "repeat"), read_integers(repeats, "repeat's repeats")
    size = x.shape[at]
    if any(count < 0 for count in counts) or len(counts) not in (1, size):
        raise ShapeError(
            f"repeat repeats {size} elements {counts} times; give one number of 0 or more, or one "
            f"for each element"
        )
    if len(set(counts)) > 1:
        rows, _ = meet(np.repeat(np.arange(size), counts).tolist(), iota(x, (1,)))
        return take(x, rows, at)
    before, after, count = x.shape[:at], x.shape[at + 1 :], counts[0]
    wide = broadcast_to(reshape(x, (*before, size, 1, *after)), (*before, size, count, *after))
    return reshape(wide, (*before, size * count, *after))


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return the differences of neighbours along a dimension, as `numpy.diff` does.

    Args:
        x: numbers of at least one dimension.
        n: how many times they are taken.
        axis: the dimension; a negative one counts from the end.
        prepend: what stands before x: numbers of its shape, but for that dimension.
        append: what stands behind it.

    Returns:
        The dtype of x; n elements fewer along the dimension.

    Raises:
        ShapeError: x holds booleans, n is negative or no integer, or there is no such dimension.

    >>> diff(backend.array([1, 4, 9, 16])).numpy(), diff(backend.array([1, 4, 9, 16]), 2).numpy()
    (array([3, 5, 7], dtype=int32), array([2, 2], dtype=int32))
    """
    at, times = normalize_axis(axis, x.ndim, "diff"), read_integer(n, "diff's n")
    if times < 0 or x.dtype is DType.bool_:
        raise ShapeError(
            f"diff takes differences of {x.type} {times} times; give numbers, and an n of 0 or more"
        )
    parts = [part for part in (prepend, x, append) if part is not None]
    x = concatenate(parts, at) if len(parts) > 1 else x
    before = (slice(None),) * at
    for _ in range(times):
        x = x[(*before, slice(1, None))] - x[(*before, slice(None, -1))]
    return x


def count_nonzero(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Any:
    """Return how many elements are not 0, or true, over some dimensions, all by default.

    Args:
        x: numbers or booleans of any shape.
        axis: the dimension, or several; None for all.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        int32, of the shape of x without these dimensions.

    Raises:
        ShapeError: a dimension does not exist, or is named twice.

    >>> count_nonzero(backend.array([[1, 0, 2], [0, 0, 3]]), 1).numpy()
    array([2, 1], dtype=int32)
    """
    is_true = x if x.dtype is DType.bool_ else not_equal(x, 0)
    return sum(is_true, axis, keepdims=keepdims)


def meshgrid(*operands: Any, indexing: str = "xy") -> tuple[Any, ...]:
    """Return for each vector its elements at all points of the grid that the vectors span.

    Args:
        operands: vectors; a number is one of one element.
        indexing: `ij` has their dimensions in order, `xy` the first two of them swapped.

    Returns:
        As many tensors of the shape of the grid, each of its own dtype.

    Raises:
        ShapeError: an operand has more than one dimension.
        OptionError: `indexing` is something else.

    >>> x, y = meshgrid(backend.array([1, 2, 3]), backend.array([10, 20]))
    >>> x.numpy().tolist(), y.numpy().tolist()
    ([[1, 2, 3], [1, 2, 3]], [[10, 10, 10], [20, 20, 20]])
    """
    if indexing not in ("xy", "ij"):
        raise OptionError(f"meshgrid's indexing={indexing!r} is none; give 'xy' or 'ij'")
    order = list(range(len(operands)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    found = []
    for x, position in zip(operands, order, strict=True):
        if x.ndim > 1:
            raise ShapeError(f"meshgrid takes vectors, not {x.type}; reshape it to one dimension")
        found.append(reshape(x, tuple(-1 if i == position else 1 for i in range(len(order)))))
    shape = broadcast_shape([x.shape for x in found], "meshgrid")
    return tuple(broadcast_to(x, shape) for x in found)


__all__ = ["count_nonzero", "diff", "meshgrid", "repeat_elements"]
