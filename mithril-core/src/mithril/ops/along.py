"""Repeats, differences, counts and grids: short compositions of other ops along dimensions.

They have no op of their own: rules, gradients and kernels are those of their pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mithril.errors import ShapeError, kind_of
from mithril.ir.operand import Operand
from mithril.ir.tensor import Tensor
from mithril.ops.arithmetic import subtract
from mithril.ops.choice import not_equal
from mithril.ops.elementwise import adopt_values, broadcast_shape, meet
from mithril.ops.index import take
from mithril.ops.reading import read_integer, read_integers
from mithril.ops.reduce import sum
from mithril.ops.shape import broadcast_to, concatenate, normalize_axis, reshape, slice_along
from mithril.option_checks import check_choice
from mithril.types import DType

Axes = int | Sequence[int] | None


def repeat_elements(x: Any, repeats: int | Sequence[int], axis: int | None = None) -> Any:
    """Return x with each element repeated, one after another, as in `numpy.repeat`.

    Args:
        x: any tensor.
        repeats: how often, for all elements or for each along the dimension; they are known where
            the function is traced.
        axis: the dimension, a negative one counts from the end; by default x is flat.

    Returns:
        The dtype of x; the sum of repeats along the dimension.

    Raises:
        ShapeError: a number of repeats is negative or no integer, or known only when a traced
            function runs; there are not as many as elements, or there is no such dimension.

    >>> x = backend.array([[1, 2], [3, 4]])
    >>> repeat_elements(x, 2, 1).numpy()
    array([[1, 1, 2, 2],
           [3, 3, 4, 4]], dtype=int32)
    >>> repeat_elements(x, [1, 2], 0).numpy()[:, 0]
    array([1, 3, 3], dtype=int32)
    """
    if axis is None:
        x, axis = reshape(x, (-1,)) if x.ndim != 1 else x, 0
    at, counts = normalize_axis(axis, x.ndim, "repeat"), _read_repeats(repeats)
    size = x.shape[at]
    if any(count < 0 for count in counts) or len(counts) not in (1, size):
        raise ShapeError(
            f"repeat repeats {size} elements {counts} times; give one number of 0 or more, or one "
            f"for each element"
        )
    if len(set(counts)) > 1:
        rows = np.repeat(np.arange(size, dtype=np.int32), counts)
        return take(x, adopt_values(rows, DType.int32, x), at)
    before, after, count = x.shape[:at], x.shape[at + 1 :], counts[0] if counts else 0
    wide = broadcast_to(reshape(x, (*before, size, 1, *after)), (*before, size, count, *after))
    return reshape(wide, (*before, size * count, *after))


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return the differences of neighbours along a dimension, as `numpy.diff` does.

    Args:
        x: numbers or booleans of at least one dimension.
        n: how many times they are taken; with 0 the result is x.
        axis: the dimension; a negative one counts from the end.
        prepend: what stands before x: numbers of its shape, but for that dimension, or one number
            for all.
        append: what stands behind it, likewise.

    Returns:
        n elements fewer along the dimension; the dtype that x, prepend and append are promoted to.
        Of booleans, whether neighbours differ.

    Raises:
        ShapeError: n is negative or no integer, there is no such dimension, or sizes of other
            dimensions differ.

    >>> diff(backend.array([1, 4, 9, 16])).numpy(), diff(backend.array([1, 4, 9, 16]), 2).numpy()
    (array([3, 5, 7], dtype=int32), array([2, 2], dtype=int32))
    >>> diff(backend.array([1, 4, 9]), prepend=0).numpy()
    array([1, 3, 5], dtype=int32)
    """
    at, times = normalize_axis(axis, x.ndim, "diff"), read_integer(n, "diff's n")
    if times < 0:
        raise ShapeError(
            f"diff's n is {times}; give 0 or more, how many times differences are taken"
        )
    if times == 0:
        return x
    x = _extend(_extend(x, prepend, at, is_before=True), append, at, is_before=False)
    compare = not_equal if x.dtype is DType.bool_ else subtract
    for _ in range(times):
        x = compare(slice_along(x, at, 1, None), slice_along(x, at, None, -1))
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
        operands: vectors, one of them a tensor. A number is a vector of one element; lists and
            numbers take the dtype of the first tensor, if they fit it.
        indexing: `ij` has their dimensions in order, `xy` the first two of them swapped.

    Returns:
        As many tensors of the shape of the grid, each of its own dtype.

    Raises:
        ShapeError: an operand has more than one dimension, or none is a tensor.
        OptionError: `indexing` is something else.

    >>> x, y = meshgrid(backend.array([1, 2, 3]), backend.array([10, 20]))
    >>> x.numpy().tolist(), y.numpy().tolist()
    ([[1, 2, 3], [1, 2, 3]], [[10, 10, 10], [20, 20, 20]])
    """
    check_choice("meshgrid's indexing", indexing, ("xy", "ij"))
    operands = _adopt_all(operands)
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


# ------------------------------------------------------------------ shared pieces


def _read_repeats(repeats: object) -> tuple[int, ...]:
    """Return how often elements are repeated, as numbers of Python."""
    if isinstance(repeats, Tensor):
        raise ShapeError(
            f"repeat's repeats are a traced {repeats.type}, and its values decide the size of the "
            f"result; give a list of integers"
        )
    known = np.asarray(repeats) if isinstance(repeats, Operand) else repeats
    return read_integers(known, "repeat's repeats")


def _extend(x: Any, end: Any, axis: int, *, is_before: bool) -> Any:
    """Return x with numbers before or behind it along a dimension; a single one stands for all."""
    if end is None:
        return x
    end, x = meet(end, x)
    if not end.ndim:
        end = broadcast_to(end, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return concatenate([end, x] if is_before else [x, end], axis)


def _adopt_all(operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return lists and numbers as tensors, of the backend or trace of those that are tensors."""
    near = next((x for x in operands if isinstance(x, Operand)), None)
    if near is None and operands:
        raise ShapeError(
            f"meshgrid takes vectors, one of them a tensor, not {kind_of(operands[0])}; give an "
            f"array of a backend, such as backend.array(…)"
        )
    return tuple(x if isinstance(x, Operand) else meet(x, near)[0] for x in operands)


__all__ = ["count_nonzero", "diff", "meshgrid", "repeat_elements"]
