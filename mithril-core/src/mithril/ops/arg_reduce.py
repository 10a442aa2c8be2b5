"""Where the largest or smallest element is, along a dimension or in the whole tensor.

Devices that share the dimension decide each for its part, and between the candidates of all parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ir.rule import Rule
from mithril.ops.order import TakeAlong, name_dims
from mithril.ops.reading import read_flag
from mithril.ops.reduce import require_elements
from mithril.ops.shape import normalize_axis, reshape
from mithril.types import DType, TensorType


@dataclass(frozen=True)
class ArgExtremum(Op):
    """The int32 index of the first extreme element along a dimension."""

    kind: ClassVar[str] = ""
    axis: int

    def infer(self, inputs: Types) -> Types:
        x = inputs[0]
        normalize_axis(self.axis, x.rank, self.name)
        require_elements(self.name, x, (self.axis,))
        kept = (size for i, size in enumerate(x.shape) if i != self.axis)
        return [TensorType(tuple(kept), DType.int32)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        dims, sizes = name_dims(inputs[0])
        found, along = frozenset({f"d{self.axis}"}), {f"d{self.axis}": self.kind}
        kept = (*dims[: self.axis], *dims[self.axis + 1 :])
        return Rule(sizes, (dims,), (kept,), along, special=found, completed=found)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(inputs[0].size, inputs[0].nbytes + outputs[0].nbytes)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x: Any = inputs[0]
        group, offset = shard.group(f"d{self.axis}"), shard.offset(f"d{self.axis}")
        at: Any
        (at,) = shard.apply(self, x)
        if group is None or offset is None:
            return [at]
        row = tuple(1 if i == self.axis else size for i, size in enumerate(x.shape))
        best = reshape(apply_one(TakeAlong(self.axis), x, reshape(at, row)), at.shape)
        values = group.gather(best, f"the {self.kind} of each part", operands=(0,))
        places = group.gather(at + offset, "where that is", operands=(0,))
        (part,) = shard.apply(type(self)(0), values)
        found: Any = apply_one(TakeAlong(0), places, reshape(part, (1, *at.shape)))
        return [reshape(found, at.shape)]


@register
@dataclass(frozen=True)
class Argmax(ArgExtremum):
    """The index of the first NaN along a dimension, else of the first largest element."""

    name: ClassVar[str] = "argmax"
    kind: ClassVar[str] = "max"


@register
@dataclass(frozen=True)
class Argmin(ArgExtremum):
    """The index of the first NaN along a dimension, else of the first smallest element."""

    name: ClassVar[str] = "argmin"
    kind: ClassVar[str] = "min"


# ------------------------------------------------------------------ functions over operands


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


__all__ = ["ArgExtremum", "Argmax", "Argmin", "argmax", "argmin"]
