"""More functions of one number: rounding, hyperbolic functions, and what a number is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cotangents, Tensors, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.arithmetic import divide, multiply
from mithril.ops.choice import greater, less, where
from mithril.ops.elementwise import Comparison, FloatOnly, NumberOnly, take_cotangent
from mithril.ops.functions import cos, exp
from mithril.types import DType, Scalar


@register
@dataclass(frozen=True)
class Sigmoid(FloatOnly):
    """1 / (1 + e ** -x), the logistic function."""

    name: ClassVar[str] = "sigmoid"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        y = outputs[0]
        return [take_cotangent(cotangents) * y * (1.0 - y)]


@register
@dataclass(frozen=True)
class Expm1(FloatOnly):
    """e ** x - 1, exact where x is small."""

    name: ClassVar[str] = "expm1"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * exp(inputs[0])]


@register
@dataclass(frozen=True)
class Log1p(FloatOnly):
    """The natural logarithm of 1 + x, exact where x is small."""

    name: ClassVar[str] = "log1p"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) / (inputs[0] + 1.0)]


@register
@dataclass(frozen=True)
class Tan(FloatOnly):
    """The tangent of x, in radians."""

    name: ClassVar[str] = "tan"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        c = cos(inputs[0])
        return [take_cotangent(cotangents) / (c * c)]


@register
@dataclass(frozen=True)
class Arctan(FloatOnly):
    """The angle whose tangent is x, in radians."""

    name: ClassVar[str] = "arctan"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x = inputs[0]
        return [take_cotangent(cotangents) / (x * x + 1.0)]


@register
@dataclass(frozen=True)
class Sinh(FloatOnly):
    """The hyperbolic sine of x."""

    name: ClassVar[str] = "sinh"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * cosh(inputs[0])]


@register
@dataclass(frozen=True)
class Cosh(FloatOnly):
    """The hyperbolic cosine of x."""

    name: ClassVar[str] = "cosh"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * sinh(inputs[0])]


@dataclass(frozen=True)
class Rounding(NumberOnly):
    """A step function of numbers: whole numbers stay as they are, and no gradient flows."""

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None]


@register
@dataclass(frozen=True)
class Floor(Rounding):
    """The largest whole number not above x."""

    name: ClassVar[str] = "floor"


@register
@dataclass(frozen=True)
class Ceil(Rounding):
    """The smallest whole number not below x."""

    name: ClassVar[str] = "ceil"


@register
@dataclass(frozen=True)
class Round(Rounding):
    """The nearest whole number; the even one of two equally near ones."""

    name: ClassVar[str] = "round"


@register
@dataclass(frozen=True)
class Trunc(Rounding):
    """The whole part of x."""

    name: ClassVar[str] = "trunc"


@dataclass(frozen=True)
class Kind(Comparison):
    """A question about a float; the result is bool and no gradient flows."""

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if not dtypes[0].is_float:
            raise ShapeError(f"op '{self.name}' asks about floats, not {dtypes[0]}; cast it first")
        return DType.bool_


@register
@dataclass(frozen=True)
class IsNan(Kind):
    """Whether x is not a number."""

    name: ClassVar[str] = "isnan"


@register
@dataclass(frozen=True)
class IsInf(Kind):
    """Whether x is infinite."""

    name: ClassVar[str] = "isinf"


@register
@dataclass(frozen=True)
class IsFinite(Kind):
    """Whether x is a number and not infinite."""

    name: ClassVar[str] = "isfinite"


# ------------------------------------------------------------------ functions over operands


def sigmoid(x: AnyOperand) -> AnyOperand:
    """Return 1 / (1 + e ** -x), the logistic function, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x, from 0 to 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> sigmoid(backend.array([-2.0, 0.0, 2.0])).numpy().round(4)
    array([0.1192, 0.5   , 0.8808], dtype=float32)
    """
    return apply_one(Sigmoid(), x)


def expm1(x: AnyOperand) -> AnyOperand:
    """Return e ** x - 1, element by element; exact where x is small.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> expm1(backend.array([0.0, 1.0])).numpy().round(4)
    array([0.    , 1.7183], dtype=float32)
    """
    return apply_one(Expm1(), x)


def log1p(x: AnyOperand) -> AnyOperand:
    """Return the natural logarithm of 1 + x, element by element; exact where x is small.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x; -inf where x is -1, NaN where it is less.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> log1p(backend.array([0.0, 1.0])).numpy().round(4)
    array([0.    , 0.6931], dtype=float32)
    """
    return apply_one(Log1p(), x)


def tan(x: AnyOperand) -> AnyOperand:
    """Return the tangent of x, element by element.

    Args:
        x: floats of any shape, in radians.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> tan(backend.array([0.0, 1.0])).numpy().round(4)
    array([0.    , 1.5574], dtype=float32)
    """
    return apply_one(Tan(), x)


def arctan(x: AnyOperand) -> AnyOperand:
    """Return the angle whose tangent is x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x, in radians from -pi / 2 to pi / 2.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> arctan(backend.array([0.0, 1.0])).numpy().round(4)
    array([0.    , 0.7854], dtype=float32)
    """
    return apply_one(Arctan(), x)


def sinh(x: AnyOperand) -> AnyOperand:
    """Return the hyperbolic sine of x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> sinh(backend.array([0.0, 1.0])).numpy().round(4)
    array([0.    , 1.1752], dtype=float32)
    """
    return apply_one(Sinh(), x)


def cosh(x: AnyOperand) -> AnyOperand:
    """Return the hyperbolic cosine of x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> cosh(backend.array([0.0, 1.0])).numpy().round(4)
    array([1.    , 1.5431], dtype=float32)
    """
    return apply_one(Cosh(), x)


def square(x: AnyOperand) -> AnyOperand:
    """Return x * x, element by element.

    Args:
        x: numbers or booleans of any shape.

    Returns:
        The shape and dtype of x.

    >>> square(backend.array([-2, 3])).numpy()
    array([4, 9], dtype=int32)
    """
    result: AnyOperand = multiply(x, x)
    return result


def reciprocal(x: AnyOperand) -> AnyOperand:
    """Return 1 / x, element by element; integers and booleans are taken as floats.

    Args:
        x: numbers or booleans of any shape.

    Returns:
        Floats of the shape of x; infinite where x is 0.

    >>> reciprocal(backend.array([2, -4])).numpy()
    array([ 0.5 , -0.25], dtype=float32)
    """
    result: AnyOperand = divide(1.0, x)
    return result


def clip(x: Any, min: Scalar | None = None, max: Scalar | None = None) -> Any:
    """Return x held between two bounds; at a bound the gradient still flows, as in PyTorch.

    Args:
        x: numbers of any shape.
        min: the lower bound, a Python number or a tensor that broadcasts with x; None for none.
        max: the upper bound, likewise; it wins where the lower one is above it.

    Returns:
        The shape that x and the bounds broadcast to, the dtype they are promoted to; x itself
        without bounds.

    Raises:
        ShapeError: shapes do not broadcast, or dtypes are of different kinds (int32 and float32,
            say).

    >>> clip(backend.array([-1.0, 0.5, 2.0]), 0.0, 1.0).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    if min is not None:
        x = where(less(x, min), min, x)
    return x if max is None else where(greater(x, max), max, x)


__all__ = [
    "Arctan", "Ceil", "Cosh", "Expm1", "Floor", "IsFinite", "IsInf", "IsNan", "Kind", "Log1p",
    "Round", "Rounding", "Sigmoid", "Sinh", "Tan", "Trunc", "arctan", "clip", "cosh", "expm1",
    "log1p", "reciprocal", "sigmoid", "sinh", "square", "tan",
]  # fmt: skip
