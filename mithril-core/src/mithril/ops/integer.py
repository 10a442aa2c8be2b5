"""Whole-number arithmetic: division with remainder, and the bits of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cotangents, Tensors, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.choice import Logical, logical_and, logical_not, logical_or
from mithril.ops.elementwise import Elementwise, NumberOnly, binary, sum_to, take_cotangent
from mithril.types import DType


@dataclass(frozen=True)
class Division(NumberOnly):
    """Base of the two halves of division with remainder, for integers and floats."""

    flops: ClassVar[int] = 4


@register
@dataclass(frozen=True)
class FloorDivide(Division):
    """The largest whole number not above x / y; no gradient flows.

    At the edge: of integers it is 0 where y is 0, and the least one over -1 is the least one.
    """

    name: ClassVar[str] = "floor_divide"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None, None]


@register
@dataclass(frozen=True)
class Remainder(Division):
    """x - y * floor(x / y): it has the sign of y, as in Python.

    At the edge: of integers it is 0 where y is 0, and where y is -1.
    """

    name: ClassVar[str] = "remainder"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, (x, y) = take_cotangent(cotangents), inputs
        return [sum_to(g, x.shape), sum_to(-g * floor_divide(x, y), y.shape)]


@dataclass(frozen=True)
class Bitwise(Elementwise):
    """An operation on the bits of integers; no gradient flows."""

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if not all(dtype.is_integer for dtype in dtypes):
            raise ShapeError(f"op '{self.name}' needs integers, not {', '.join(dtypes)}; cast them")
        return Elementwise.result_dtype(self, dtypes)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None] * len(inputs)


@register
@dataclass(frozen=True)
class BitwiseAnd(Bitwise):
    """The bits that both x and y have."""

    name: ClassVar[str] = "bitwise_and"


@register
@dataclass(frozen=True)
class BitwiseOr(Bitwise):
    """The bits that x or y has."""

    name: ClassVar[str] = "bitwise_or"


@register
@dataclass(frozen=True)
class BitwiseXor(Bitwise):
    """The bits that one of x and y has."""

    name: ClassVar[str] = "bitwise_xor"


@register
@dataclass(frozen=True)
class BitwiseInvert(Bitwise):
    """The bits that x does not have."""

    name: ClassVar[str] = "bitwise_invert"


@register
@dataclass(frozen=True)
class LeftShift(Bitwise):
    """The bits of x moved up by y places; zeros come in below.

    At the edge: by as many places as x has bits, or more, it is 0.
    """

    name: ClassVar[str] = "bitwise_left_shift"


@register
@dataclass(frozen=True)
class RightShift(Bitwise):
    """The bits of x moved down by y places; the sign comes in above.

    At the edge: by as many places as x has bits, or more, it is 0, or -1 of a negative x.
    """

    name: ClassVar[str] = "bitwise_right_shift"


@register
@dataclass(frozen=True)
class LogicalXor(Logical):
    """x or y, but not both."""

    name: ClassVar[str] = "logical_xor"


# ------------------------------------------------------------------ functions over operands


def floor_divide(x: Any, y: Any) -> Any:
    """Return the largest whole number not above x / y, element by element.

    Args:
        x: numbers of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: both are booleans, shapes do not broadcast, dtypes are of different kinds (int32
            and float32, say), or a Python number does not fit the dtype of the tensor.

    >>> floor_divide(backend.array([7, -7]), 2).numpy()
    array([ 3, -4], dtype=int32)
    """
    return binary(FloorDivide(), x, y)


def remainder(x: Any, y: Any) -> Any:
    """Return what `floor_divide` leaves of x; it has the sign of y, as in Python.

    Args:
        x: numbers of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: both are booleans, shapes do not broadcast, dtypes are of different kinds (int32
            and float32, say), or a Python number does not fit the dtype of the tensor.

    >>> remainder(backend.array([7, -7]), 3).numpy()
    array([1, 2], dtype=int32)
    """
    return binary(Remainder(), x, y)


def bitwise_and(x: Any, y: Any) -> Any:
    """Return the bits of both integers; of booleans, whether both are true.

    Args:
        x: integers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, an operand holds floats, or dtypes are of different
            kinds (int32 and bool, say).

    >>> bitwise_and(backend.array([5, 6]), 3).numpy()
    array([1, 2], dtype=int32)
    """
    return logical_and(x, y) if _are_bool(x, y) else binary(BitwiseAnd(), x, y)


def bitwise_or(x: Any, y: Any) -> Any:
    """Return the bits of either integer; of booleans, whether one is true.

    Args:
        x: integers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, an operand holds floats, or dtypes are of different
            kinds (int32 and bool, say).

    >>> bitwise_or(backend.array([5, 6]), 3).numpy()
    array([7, 7], dtype=int32)
    """
    return logical_or(x, y) if _are_bool(x, y) else binary(BitwiseOr(), x, y)


def bitwise_xor(x: Any, y: Any) -> Any:
    """Return the bits of one of two integers; of booleans, whether they differ.

    Args:
        x: integers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, an operand holds floats, or dtypes are of different
            kinds (int32 and bool, say).

    >>> bitwise_xor(backend.array([5, 6]), 3).numpy()
    array([6, 5], dtype=int32)
    """
    return logical_xor(x, y) if _are_bool(x, y) else binary(BitwiseXor(), x, y)


def bitwise_invert(x: AnyOperand) -> AnyOperand:
    """Return the bits an integer does not have; of booleans, the opposite.

    Args:
        x: integers or booleans of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x holds floats.

    >>> bitwise_invert(backend.array([0, 5])).numpy()
    array([-1, -6], dtype=int32)
    """
    return logical_not(x) if _are_bool(x) else apply_one(BitwiseInvert(), x)


def bitwise_left_shift(x: Any, y: Any) -> Any:
    """Return the bits of x moved up by y places; zeros come in below.

    Args:
        x: integers of any shape, or a Python number.
        y: numbers of places, from 0 to less than the bits of the dtype; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, or an operand does not hold integers.

    >>> bitwise_left_shift(backend.array([1, 5]), 2).numpy()
    array([ 4, 20], dtype=int32)
    """
    return binary(LeftShift(), x, y)


def bitwise_right_shift(x: Any, y: Any) -> Any:
    """Return the bits of x moved down by y places; the sign comes in above.

    Args:
        x: integers of any shape, or a Python number.
        y: numbers of places, from 0 to less than the bits of the dtype; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, or an operand does not hold integers.

    >>> bitwise_right_shift(backend.array([20, -20]), 2).numpy()
    array([ 5, -5], dtype=int32)
    """
    return binary(RightShift(), x, y)


def logical_xor(x: Any, y: Any) -> Any:
    """Return whether one of x and y is true, but not both, element by element.

    Args:
        x: booleans of any shape, or a Python bool.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, or an operand is not boolean.

    >>> logical_xor(backend.array([True, True, False]), backend.array([True, False, False])).numpy()
    array([False,  True, False])
    """
    return binary(LogicalXor(), x, y)


def _are_bool(*operands: Any) -> bool:
    return all(isinstance(x, bool) or getattr(x, "dtype", None) == DType.bool_ for x in operands)


__all__ = [
    "Bitwise", "BitwiseAnd", "BitwiseInvert", "BitwiseOr", "BitwiseXor", "Division", "FloorDivide",
    "LeftShift", "LogicalXor", "Remainder", "RightShift", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "floor_divide",
    "logical_xor", "remainder",
]  # fmt: skip
