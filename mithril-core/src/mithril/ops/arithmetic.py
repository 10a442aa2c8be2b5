"""Arithmetic, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.ir.op import Cotangents, Tensors, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.choice import equal, logical_and, where
from mithril.ops.elementwise import (
    Elementwise,
    FloatOnly,
    NumberOnly,
    binary,
    cast,
    floating,
    sum_to,
    take_cotangent,
)
from mithril.ops.functions import log


@register
@dataclass(frozen=True)
class Add(Elementwise):
    """x + y."""

    name: ClassVar[str] = "add"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1),)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = take_cotangent(cotangents), *inputs
        return [sum_to(g, x.shape), sum_to(g, y.shape)]


@register
@dataclass(frozen=True)
class Subtract(NumberOnly):
    """x - y."""

    name: ClassVar[str] = "subtract"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1),)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = take_cotangent(cotangents), *inputs
        return [sum_to(g, x.shape), sum_to(-g, y.shape)]


@register
@dataclass(frozen=True)
class Multiply(Elementwise):
    """x * y."""

    name: ClassVar[str] = "multiply"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,), (1,))

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = take_cotangent(cotangents), *inputs
        return [sum_to(g * y, x.shape), sum_to(g * x, y.shape)]


@register
@dataclass(frozen=True)
class Divide(FloatOnly):
    """x / y for floats."""

    name: ClassVar[str] = "divide"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)
    flops: ClassVar[int] = 1

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = take_cotangent(cotangents), *inputs
        return [sum_to(g / y, x.shape), sum_to(-g * outputs[0] / y, y.shape)]


@register
@dataclass(frozen=True)
class Power(NumberOnly):
    """x ** y; of integers the whole part, so 0 for a negative exponent unless x is 1 or -1."""

    name: ClassVar[str] = "power"
    flops: ClassVar[int] = 8

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = take_cotangent(cotangents), *inputs
        safe = where(x > 0.0, x, 1.0)  # d/dy is 0 where x <= 0, as in JAX and PyTorch at x = 0
        return [
            sum_to(g * y * power(x, _derivative_exponent(y, x)), x.shape),
            sum_to(where(x > 0.0, g * outputs[0] * log(safe), 0.0), y.shape),
        ]


@register
@dataclass(frozen=True)
class Maximum(Elementwise):
    """The larger of x and y, NaN if one is; of equal ones each has half the gradient."""

    name: ClassVar[str] = "maximum"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, y = inputs
        return _choice_gradient(take_cotangent(cotangents), x, y, x > y)


@register
@dataclass(frozen=True)
class Minimum(Elementwise):
    """The smaller of x and y, NaN if one is; of equal ones each has half the gradient."""

    name: ClassVar[str] = "minimum"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, y = inputs
        return _choice_gradient(take_cotangent(cotangents), x, y, x < y)


@register
@dataclass(frozen=True)
class Negate(NumberOnly):
    """-x."""

    name: ClassVar[str] = "negate"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [-take_cotangent(cotangents)]


# ------------------------------------------------------------------ functions over operands


def add(x: Any, y: Any) -> Any:
    """Return x + y, element by element; of booleans, whether one is true.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> add(backend.array([1.0, 2.0]), backend.array([[10.0], [20.0]])).numpy()
    array([[11., 12.],
           [21., 22.]], dtype=float32)
    """
    return binary(Add(), x, y)


def subtract(x: Any, y: Any) -> Any:
    """Return x - y, element by element.

    Args:
        x: numbers of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: both are booleans, shapes do not broadcast, dtypes are of different kinds (int32
            and float32, say), or a Python number does not fit the dtype of the tensor.

    >>> subtract(backend.array([1.0, 2.0]), 0.5).numpy()
    array([0.5, 1.5], dtype=float32)
    """
    return binary(Subtract(), x, y)


def multiply(x: Any, y: Any) -> Any:
    """Return x * y, element by element; of booleans, whether both are true.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> multiply(backend.array([1, 2, 3]), 10).numpy()
    array([10, 20, 30], dtype=int32)
    """
    return binary(Multiply(), x, y)


def divide(x: Any, y: Any) -> Any:
    """Return x / y, element by element; integers and booleans are divided as floats.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        Floats of the shape that x and y broadcast to, of integers in the default float dtype (at
        least float32); infinite or NaN where y is 0.

    Raises:
        ShapeError: shapes do not broadcast.

    >>> divide(backend.array([1, 2]), 4).numpy()
    array([0.25, 0.5 ], dtype=float32)
    """
    return binary(Divide(), *floating(x, y))


def power(x: Any, y: Any) -> Any:
    """Return x ** y, element by element.

    Of two integers the result is an integer, cut off at the point.

    Args:
        x: numbers of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to; NaN where a negative
        float has a fractional exponent.

    Raises:
        ShapeError: both are booleans, shapes do not broadcast, dtypes are of different kinds (int32
            and float32, say), or a Python number does not fit the dtype of the tensor.

    >>> power(backend.array([1.0, 2.0, 3.0]), 2).numpy()
    array([1., 4., 9.], dtype=float32)
    """
    return binary(Power(), x, y)


def maximum(x: Any, y: Any) -> Any:
    """Return the larger of x and y, element by element.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> maximum(backend.array([-1.0, 0.5, 2.0]), 0.0).numpy()
    array([0. , 0.5, 2. ], dtype=float32)
    """
    return binary(Maximum(), x, y)


def minimum(x: Any, y: Any) -> Any:
    """Return the smaller of x and y, element by element.

    Args:
        x: numbers or booleans of any shape, or a Python number.
        y: the same; one of the two is a tensor.

    Returns:
        The shape that x and y broadcast to, the dtype they are promoted to.

    Raises:
        ShapeError: shapes do not broadcast, dtypes are of different kinds (int32 and float32, say),
            or a Python number does not fit the dtype of the tensor.

    >>> minimum(backend.array([-1.0, 0.5, 2.0]), 1.0).numpy()
    array([-1. ,  0.5,  1. ], dtype=float32)
    """
    return binary(Minimum(), x, y)


def negate(x: AnyOperand) -> AnyOperand:
    """Return -x, element by element.

    Args:
        x: numbers of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is boolean.

    >>> negate(backend.array([1.0, -2.0])).numpy()
    array([-1.,  2.], dtype=float32)
    """
    return apply_one(Negate(), x)


def _derivative_exponent(y: Any, x: Any) -> Any:
    """Return y - 1, but 1 where x and y are 0: 0 times infinity would follow."""
    if y._constant_value:
        return y._constant_value - 1.0
    return where(logical_and(equal(x, 0.0), equal(y, 0.0)), 1.0, y - 1.0)


def _choice_gradient(g: Any, x: Any, y: Any, x_wins: Any) -> Cotangents:
    tied = where(equal(x, y), 0.5, 0.0)
    share = cast(where(x_wins, 1.0, tied), g.dtype)
    return [sum_to(g * share, x.shape), sum_to(g * (1.0 - share), y.shape)]


__all__ = [
    "Add",
    "Divide",
    "Maximum",
    "Minimum",
    "Multiply",
    "Negate",
    "Power",
    "Subtract",
    "add",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "negate",
    "power",
    "subtract",
]
