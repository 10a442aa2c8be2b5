"""Functions of one number, element by element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from mithril.ir.op import Cotangents, Tensors, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ops.choice import where
from mithril.ops.elementwise import FloatOnly, NumberOnly, take_cotangent
from mithril.types import DType


@register
@dataclass(frozen=True)
class Exp(FloatOnly):
    """e ** x."""

    name: ClassVar[str] = "exp"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * outputs[0]]


@register
@dataclass(frozen=True)
class Log(FloatOnly):
    """The natural logarithm of x."""

    name: ClassVar[str] = "log"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) / inputs[0]]


@register
@dataclass(frozen=True)
class Sqrt(FloatOnly):
    """The square root of x."""

    name: ClassVar[str] = "sqrt"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * 0.5 / outputs[0]]


@register
@dataclass(frozen=True)
class Rsqrt(FloatOnly):
    """1 / sqrt(x)."""

    name: ClassVar[str] = "rsqrt"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * -0.5 * outputs[0] / inputs[0]]


@register
@dataclass(frozen=True)
class Tanh(FloatOnly):
    """The hyperbolic tangent of x."""

    name: ClassVar[str] = "tanh"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * (1.0 - outputs[0] * outputs[0])]


@register
@dataclass(frozen=True)
class Sin(FloatOnly):
    """The sine of x, in radians."""

    name: ClassVar[str] = "sin"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * cos(inputs[0])]


@register
@dataclass(frozen=True)
class Cos(FloatOnly):
    """The cosine of x, in radians."""

    name: ClassVar[str] = "cos"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [-take_cotangent(cotangents) * sin(inputs[0])]


@register
@dataclass(frozen=True)
class Erf(FloatOnly):
    """The error function of x."""

    name: ClassVar[str] = "erf"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x = inputs[0]
        return [take_cotangent(cotangents) * (2.0 / math.sqrt(math.pi)) * exp(-x * x)]


@register
@dataclass(frozen=True)
class Abs(NumberOnly):
    """The magnitude of x; the gradient at 0 is 0."""

    name: ClassVar[str] = "abs"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [take_cotangent(cotangents) * sign(inputs[0])]


@register
@dataclass(frozen=True)
class Sign(NumberOnly):
    """-1, 0 or 1, and NaN of NaN; no gradient flows."""

    name: ClassVar[str] = "sign"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None]


@register
@dataclass(frozen=True)
class Relu(NumberOnly):
    """max(x, 0); the gradient at 0 is 0, as in PyTorch."""

    name: ClassVar[str] = "relu"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [where(outputs[0] > 0, take_cotangent(cotangents), 0)]


# ------------------------------------------------------------------ functions over operands


def exp(x: AnyOperand) -> AnyOperand:
    """Return e ** x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> exp(backend.array([0.0, 1.0])).numpy().round(4)
    array([1.    , 2.7183], dtype=float32)
    """
    return apply_one(Exp(), x)


def log(x: AnyOperand) -> AnyOperand:
    """Return the natural logarithm of x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x; -inf where x is 0, NaN where it is negative.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> log(backend.array([1.0, 2.0])).numpy().round(4)
    array([0.    , 0.6931], dtype=float32)
    """
    return apply_one(Log(), x)


def sqrt(x: AnyOperand) -> AnyOperand:
    """Return the square root of x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x; NaN where x is negative.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> sqrt(backend.array([4.0, 9.0])).numpy()
    array([2., 3.], dtype=float32)
    """
    return apply_one(Sqrt(), x)


def rsqrt(x: AnyOperand) -> AnyOperand:
    """Return 1 / sqrt(x), element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x; inf where x is 0, NaN where it is negative.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> rsqrt(backend.array([4.0, 0.25])).numpy().round(4)
    array([0.5, 2. ], dtype=float32)
    """
    return apply_one(Rsqrt(), x)


def tanh(x: AnyOperand) -> AnyOperand:
    """Return the hyperbolic tangent of x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x, from -1 to 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> tanh(backend.array([-1.0, 0.0, 1.0])).numpy().round(4)
    array([-0.7616,  0.    ,  0.7616], dtype=float32)
    """
    return apply_one(Tanh(), x)


def sin(x: AnyOperand) -> AnyOperand:
    """Return the sine of x, element by element.

    Args:
        x: floats of any shape, in radians.

    Returns:
        The shape and dtype of x, from -1 to 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> sin(backend.array([0.0, 0.5 * math.pi])).numpy().round(4)
    array([0., 1.], dtype=float32)
    """
    return apply_one(Sin(), x)


def cos(x: AnyOperand) -> AnyOperand:
    """Return the cosine of x, element by element.

    Args:
        x: floats of any shape, in radians.

    Returns:
        The shape and dtype of x, from -1 to 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> cos(backend.array([0.0, math.pi])).numpy().round(4)
    array([ 1., -1.], dtype=float32)
    """
    return apply_one(Cos(), x)


def erf(x: AnyOperand) -> AnyOperand:
    """Return the error function of x, element by element.

    Args:
        x: floats of any shape.

    Returns:
        The shape and dtype of x, from -1 to 1.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> erf(backend.array([-1.0, 0.0, 1.0])).numpy().round(4)
    array([-0.8427,  0.    ,  0.8427], dtype=float32)
    """
    return apply_one(Erf(), x)


def abs(x: AnyOperand) -> AnyOperand:
    """Return the magnitude of x, element by element.

    Args:
        x: numbers or booleans of any shape.

    Returns:
        The shape and dtype of x.

    >>> abs(backend.array([-1.5, 2.0])).numpy()
    array([1.5, 2. ], dtype=float32)
    """
    return x if x.dtype == DType.bool_ else apply_one(Abs(), x)


def sign(x: AnyOperand) -> AnyOperand:
    """Return -1, 0 or 1 by the sign of x, element by element.

    Args:
        x: numbers of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is boolean.

    >>> sign(backend.array([-1.5, 0.0, 2.0])).numpy()
    array([-1.,  0.,  1.], dtype=float32)
    """
    return apply_one(Sign(), x)


def relu(x: AnyOperand) -> AnyOperand:
    """Return max(x, 0), element by element.

    Args:
        x: numbers of any shape.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: x is boolean.

    >>> relu(backend.array([-1.5, 0.0, 2.0])).numpy()
    array([0., 0., 2.], dtype=float32)
    """
    return apply_one(Relu(), x)


__all__ = [
    "Abs",
    "Cos",
    "Erf",
    "Exp",
    "Log",
    "Relu",
    "Rsqrt",
    "Sign",
    "Sin",
    "Sqrt",
    "Tanh",
    "abs",
    "cos",
    "erf",
    "exp",
    "log",
    "relu",
    "rsqrt",
    "sign",
    "sin",
    "sqrt",
    "tanh",
]
