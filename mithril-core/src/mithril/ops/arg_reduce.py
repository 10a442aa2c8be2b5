"""Where the largest or smallest element is, along a dimension or in the whole tensor."""

from __future__ import annotations

from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.reduce import ArgExtremum, Argmax, Argmin
from mithril.ops.shape import normalize_axis, reshape


def argmax(x: AnyOperand, axis: int | None = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the int32 index of the first largest element along a dimension, or of all."""
    return _arg_extremum(Argmax, x, axis, keepdims)


def argmin(x: AnyOperand, axis: int | None = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the int32 index of the first smallest element along a dimension, or of all."""
    return _arg_extremum(Argmin, x, axis, keepdims)


def _arg_extremum(
    op: type[ArgExtremum], x: AnyOperand, axis: int | None, keepdims: bool
) -> AnyOperand:
    if axis is None:
        found = apply_one(op(0), reshape(x, (x.size,)))
        return reshape(found, (1,) * x.ndim) if keepdims else found
    chosen = normalize_axis(axis, x.ndim, op.name)
    found = apply_one(op(chosen), x)
    shape = tuple(1 if i == chosen else size for i, size in enumerate(x.shape))
    return reshape(found, shape) if keepdims else found


__all__ = ["argmax", "argmin"]
