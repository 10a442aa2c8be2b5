"""Comparison, logic and choice: elementwise ops through which booleans decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cotangents, Tensors, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.elementwise import Comparison, Elementwise, binary, meet, sum_to, take_cotangent
from mithril.types import DType


@register
@dataclass(frozen=True)
class Equal(Comparison):
    """x == y."""

    name: ClassVar[str] = "equal"


@register
@dataclass(frozen=True)
class NotEqual(Comparison):
    """x != y."""

    name: ClassVar[str] = "not_equal"


@register
@dataclass(frozen=True)
class Less(Comparison):
    """x < y."""

    name: ClassVar[str] = "less"


@register
@dataclass(frozen=True)
class LessEqual(Comparison):
    """x <= y."""

    name: ClassVar[str] = "less_equal"


@register
@dataclass(frozen=True)
class Greater(Comparison):
    """x > y."""

    name: ClassVar[str] = "greater"


@register
@dataclass(frozen=True)
class GreaterEqual(Comparison):
    """x >= y."""

    name: ClassVar[str] = "greater_equal"


@dataclass(frozen=True)
class Logical(Comparison):
    """A connective of booleans."""

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if set(dtypes) != {DType.bool_}:
            raise ShapeError(
                f"op '{self.name}' needs bool, not {', '.join(dtypes)}; compare or cast first"
            )
        return DType.bool_


@register
@dataclass(frozen=True)
class LogicalAnd(Logical):
    """x and y."""

    name: ClassVar[str] = "logical_and"


@register
@dataclass(frozen=True)
class LogicalOr(Logical):
    """x or y."""

    name: ClassVar[str] = "logical_or"


@register
@dataclass(frozen=True)
class LogicalNot(Logical):
    """not x."""

    name: ClassVar[str] = "logical_not"


@register
@dataclass(frozen=True)
class Where(Elementwise):
    """x where the condition holds, y elsewhere; operands (condition, x, y)."""

    name: ClassVar[str] = "where"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((1, 2),)

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if dtypes[0] != DType.bool_:
            raise ShapeError(f"op 'where' needs a bool condition, not {dtypes[0]}; compare first")
        return Elementwise.result_dtype(self, dtypes[1:])

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, (condition, x, y) = take_cotangent(cotangents), inputs
        return [
            None,
            sum_to(where(condition, g, 0), x.shape),
            sum_to(where(condition, 0, g), y.shape),
        ]


@register
@dataclass(frozen=True)
class StopGradient(Elementwise):
    """x, through which no gradient flows."""

    name: ClassVar[str] = "stop_gradient"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)
    flops: ClassVar[int] = 0

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None]


# ------------------------------------------------------------------ functions over operands


def equal(x: Any, y: Any) -> Any:
    """Return x == y, element by element.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> equal(backend.array([1, 2, 3]), 2).numpy()
    array([False,  True, False])
    """
    return binary(Equal(), x, y)


def not_equal(x: Any, y: Any) -> Any:
    """Return x != y, element by element.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> not_equal(backend.array([1, 2, 3]), 2).numpy()
    array([ True, False,  True])
    """
    return binary(NotEqual(), x, y)


def less(x: Any, y: Any) -> Any:
    """Return x < y, element by element.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> less(backend.array([1.0, 2.0, 3.0]), 2.0).numpy()
    array([ True, False, False])
    """
    return binary(Less(), x, y)


def less_equal(x: Any, y: Any) -> Any:
    """Return x <= y, element by element.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> less_equal(backend.array([1.0, 2.0, 3.0]), 2.0).numpy()
    array([ True,  True, False])
    """
    return binary(LessEqual(), x, y)


def greater(x: Any, y: Any) -> Any:
    """Return x > y, element by element.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> greater(backend.array([1.0, 2.0, 3.0]), 2.0).numpy()
    array([False, False,  True])
    """
    return binary(Greater(), x, y)


def greater_equal(x: Any, y: Any) -> Any:
    """Return x >= y, element by element.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> greater_equal(backend.array([1.0, 2.0, 3.0]), 2.0).numpy()
    array([False,  True,  True])
    """
    return binary(GreaterEqual(), x, y)


def logical_and(x: Any, y: Any) -> Any:
    """Return whether both x and y are true, element by element.

    Args:
        x: booleans of any shape, or a Python bool.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, or an operand is not boolean.

    >>> logical_and(backend.array([True, True, False]), backend.array([True, False, False])).numpy()
    array([ True, False, False])
    """
    return binary(LogicalAnd(), x, y)


def logical_or(x: Any, y: Any) -> Any:
    """Return whether one of x and y is true, element by element.

    Args:
        x: booleans of any shape, or a Python bool.
        y: the same; one of the two is a tensor.

    Returns:
        Booleans of the shape that x and y broadcast to.

    Raises:
        ShapeError: shapes do not broadcast, or an operand is not boolean.

    >>> logical_or(backend.array([True, True, False]), backend.array([True, False, False])).numpy()
    array([ True,  True, False])
    """
    return binary(LogicalOr(), x, y)


def logical_not(x: AnyOperand) -> AnyOperand:
    """Return whether x is false, element by element.

    Args:
        x: booleans of any shape.

    Returns:
        Booleans of the shape of x.

    Raises:
        ShapeError: x is not boolean.

    >>> logical_not(backend.array([True, False])).numpy()
    array([False,  True])
    """
    return apply_one(LogicalNot(), x)


def where(condition: AnyOperand, x: Any, y: Any) -> AnyOperand:
    """Return x where the condition holds and y elsewhere.

    Args:
        condition: booleans of any shape.
        x: numbers or booleans of any shape, or a Python number.
        y: the same; two Python numbers become floats of the default dtype, int32 without a
            float, or bool.

    Returns:
        The shape that all three broadcast to, the dtype that x and y are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, the condition is not boolean, or the dtypes of x and y
            are of different kinds (int32 and float32, say).

    >>> x = backend.array([-1.0, 2.0, -3.0])
    >>> where(x < 0, 0.0, x).numpy()
    array([0., 2., 0.], dtype=float32)
    """
    chosen: AnyOperand = apply_one(Where(), condition, *meet(x, y, like=condition))
    return chosen


def keep_where(condition: AnyOperand, x: AnyOperand) -> AnyOperand:
    """Return x where a condition holds, and zeros of its dtype elsewhere."""
    kept: AnyOperand = where(condition, x, x._number(0, x.dtype))
    return kept


def stop_gradient(x: AnyOperand) -> AnyOperand:
    """Return x, through which no gradient flows.

    Args:
        x: any tensor.

    Returns:
        The elements, shape and dtype of x.

    >>> import mithril as ml
    >>> ml.grad(lambda x: x * stop_gradient(x))(backend.array(3.0)).numpy().item()
    3.0
    """
    return apply_one(StopGradient(), x)


__all__ = [
    "Equal",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "Logical",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "NotEqual",
    "StopGradient",
    "Where",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "not_equal",
    "stop_gradient",
    "where",
]
