"""Where the largest or smallest element is, along a dimension or in the whole tensor."""

from __future__ import annotations

from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.reading import read_flag
from mithril.ops.reduce import ArgExtremum, Argmax, Argmin
from mithril.ops.shape import normalize_axis, reshape


def argmax(x: AnyOperand, axis: int | None = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the index of the first largest element along a dimension, or in the whole tensor.

    Args:
        x: numbers or booleans of any shape.
        axis: the dimension; None for the flat index into all elements, row-major.
        keepdims: whether what is searched stays, with size 1.

    Returns:
        int32, counted from 0; the shape of x without the dimension.

    Raises:
        ShapeError: there are no elements, or no such dimension.

    >>> argmax(backend.array([[1.0, 5.0], [4.0, 2.0]]), 1).numpy()
    array([1, 0], dtype=int32)
    """
    return _arg_extremum(Argmax, x, axis, keepdims)


def argmin(x: AnyOperand, axis: int | None = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the index of the first smallest element along a dimension, or in the whole tensor.

    Args:
        x: numbers or booleans of any shape.
        axis: the dimension; None for the flat index into all elements, row-major.
        keepdims: whether what is searched stays, with size 1.

    Returns:
        int32, counted from 0; the shape of x without the dimension.

    Raises:
        ShapeError: there are no elements, or no such dimension.

    >>> argmin(backend.array([[1.0, 5.0], [4.0, 2.0]]), 1).numpy()
    array([0, 1], dtype=int32)
    """
    return _arg_extremum(Argmin, x, axis, keepdims)


def _arg_extremum(
    op: type[ArgExtremum], x: AnyOperand, axis: int | None, keepdims: bool
) -> AnyOperand:
    keepdims = read_flag(keepdims, f"{op.name}'s keepdims")
    if axis is None:
        found = apply_one(op(0), reshape(x, (x.size,)))
        return reshape(found, (1,) * x.ndim) if keepdims else found
    chosen = normalize_axis(axis, x.ndim, op.name)
    found = apply_one(op(chosen), x)
    shape = tuple(1 if i == chosen else size for i, size in enumerate(x.shape))
    return reshape(found, shape) if keepdims else found


__all__ = ["argmax", "argmin"]
