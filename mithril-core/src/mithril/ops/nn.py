"""Fused ops of neural networks: softmax, log_softmax, gelu, silu, and their gradients.

Each op expands into smaller ops, so an engine needs no kernel for it; each gradient is an op of its
own, linear in the cotangent. The dimension of a softmax is whole for the fused op; it may be split
when the op is expanded, at the price of one number per row for each reduction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ir.rule import Rule
from mithril.ops.choice import stop_gradient
from mithril.ops.elementwise import FloatOnly, cast
from mithril.ops.expansion import gradient_by_expansion
from mithril.ops.functions import erf, exp, log, tanh
from mithril.ops.numbers import sigmoid
from mithril.ops.reduce import accumulator, max, sum
from mithril.ops.shape import normalize_axis
from mithril.types import TensorType

SQRT_HALF = math.sqrt(0.5)
TANH_SCALE = math.sqrt(2.0 / math.pi)
TANH_CUBE = 0.044715


def dim_names(rank: int) -> list[str]:
    return [f"d{i}" for i in range(rank)]


def require_float(t: TensorType, what: str) -> None:
    if not t.dtype.is_float:
        raise ShapeError(f"{what} needs a float dtype, not {t}; cast it first")


# ------------------------------------------------------------------ softmax


@register
@dataclass(frozen=True)
class Softmax(Op):
    """exp(x) normalised to sum 1 along a dimension (Bridle, 1990)."""

    name: ClassVar[str] = "softmax"
    axis: int

    def infer(self, inputs: Types) -> Types:
        return [_check_along(inputs[0], self.axis, "softmax")]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [apply_one(SoftmaxGradient(self.axis), outputs[0], take_cotangent(cotangents))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        dims = " ".join(dim_names(inputs[0].rank))
        return Rule.parse(f"{dims} -> {dims}", inputs, outputs, expandable=[f"d{self.axis}"])

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(12 * inputs[0].size, 2 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        (x,) = widen(inputs)
        shifted = exp(x - stop_gradient(max(x, self.axis, keepdims=True)))
        return [cast(shifted / sum(shifted, self.axis, keepdims=True), inputs[0].dtype)]


@register
@dataclass(frozen=True)
class SoftmaxGradient(Op):
    """The cotangent of softmax's operand; operands (result, cotangent)."""

    name: ClassVar[str] = "softmax_gradient"
    axis: int

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (y, g), c = inputs, take_cotangent(cotangents)
        inner = sum(y * c, self.axis, keepdims=True)
        through_y = c * (g - sum(y * g, self.axis, keepdims=True)) - g * inner
        return [through_y, y * (c - inner)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        dims = " ".join(dim_names(inputs[0].rank))
        text = f"{dims}, {dims} -> {dims}"
        return Rule.parse(text, inputs, outputs, expandable=[f"d{self.axis}"], linear=((1,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(4 * inputs[0].size, 3 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        y, g = widen(inputs)
        return [cast(y * (g - sum(y * g, self.axis, keepdims=True)), inputs[0].dtype)]


@register
@dataclass(frozen=True)
class LogSoftmax(Op):
    """The logarithm of softmax, x - log(sum(exp(x))) along a dimension."""

    name: ClassVar[str] = "log_softmax"
    axis: int

    def infer(self, inputs: Types) -> Types:
        return [_check_along(inputs[0], self.axis, "log_softmax")]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g = take_cotangent(cotangents)
        return [g - exp(outputs[0]) * sum(g, self.axis, keepdims=True)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return Softmax(self.axis).rule(inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(12 * inputs[0].size, 2 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        (x,) = widen(inputs)
        shifted = x - stop_gradient(max(x, self.axis, keepdims=True))
        y = shifted - log(sum(exp(shifted), self.axis, keepdims=True))
        return [cast(y, inputs[0].dtype)]


def _check_along(x: TensorType, axis: int, what: str) -> TensorType:
    require_float(x, what)
    if not x.shape[normalize_axis(axis, x.rank, what)]:
        raise ShapeError(f"cannot take the {what} of {x}; dimension {axis} is empty")
    return x


# ------------------------------------------------------------------ gelu


@register
@dataclass(frozen=True)
class Gelu(FloatOnly):
    """x times the normal distribution function of x (Hendrycks and Gimpel, 2016)."""

    name: ClassVar[str] = "gelu"
    flops: ClassVar[int] = 20
    approximate: bool

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [apply_one(GeluGradient(self.approximate), inputs[0], take_cotangent(cotangents))]

    def expand(self, inputs: Tensors) -> Tensors:
        (x,) = widen(inputs)
        if self.approximate:
            step = tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x))
        else:
            step = erf(x * SQRT_HALF)
        return [cast(x * 0.5 * (1.0 + step), inputs[0].dtype)]


@register
@dataclass(frozen=True)
class GeluGradient(FloatOnly):
    """The cotangent of gelu's operand; operands (x, cotangent)."""

    name: ClassVar[str] = "gelu_gradient"
    flops: ClassVar[int] = 25
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((1,),)
    approximate: bool

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        if self.approximate:
            return gradient_by_expansion(self, inputs, cotangents)
        x, c = inputs[0], take_cotangent(cotangents)
        density = exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
        through_x = c * inputs[1] * density * (2.0 - x * x)
        return [through_x, apply_one(GeluGradient(False), x, c)]

    def expand(self, inputs: Tensors) -> Tensors:
        x, g = widen(inputs)
        if self.approximate:
            t = tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x))
            inner = TANH_SCALE * (1.0 + 3.0 * TANH_CUBE * x * x)
            slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner
        else:
            density = exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
            slope = 0.5 * (1.0 + erf(x * SQRT_HALF)) + x * density
        return [cast(g * slope, inputs[0].dtype)]


# ------------------------------------------------------------------ silu


@register
@dataclass(frozen=True)
class Silu(FloatOnly):
    """x times its sigmoid (Elfwing, Uchibe, Doya, 2018; "swish": Ramachandran, Zoph, Le, 2017)."""

    name: ClassVar[str] = "silu"
    flops: ClassVar[int] = 12

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [apply_one(SiluGradient(), inputs[0], take_cotangent(cotangents))]

    def expand(self, inputs: Tensors) -> Tensors:
        (x,) = widen(inputs)
        return [cast(x * sigmoid(x), inputs[0].dtype)]


@register
@dataclass(frozen=True)
class SiluGradient(FloatOnly):
    """The cotangent of silu's operand; operands (x, cotangent)."""

    name: ClassVar[str] = "silu_gradient"
    flops: ClassVar[int] = 16
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((1,),)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def expand(self, inputs: Tensors) -> Tensors:
        x, g = widen(inputs)
        gate = sigmoid(x)
        return [cast(g * (gate * (1.0 + x * (1.0 - gate))), inputs[0].dtype)]


# ------------------------------------------------------------------ functions over operands


def softmax(x: AnyOperand, axis: int = -1) -> AnyOperand:
    """Return exp(x) normalised to sum 1 along a dimension.

    Args:
        x: any tensor of a float dtype; 16-bit floats are computed in float32.
        axis: the dimension; a negative one counts from the end.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: the dimension is empty or missing.

    >>> softmax(backend.array([[5.0, 5.0], [0.0, 1000.0]])).numpy().tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    return apply_one(Softmax(normalize_axis(axis, x.ndim, "softmax")), x)


def log_softmax(x: AnyOperand, axis: int = -1) -> AnyOperand:
    """Return the logarithm of softmax along a dimension.

    Args:
        x: any tensor of a float dtype; 16-bit floats are computed in float32.
        axis: the dimension; a negative one counts from the end.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: the dimension is empty or missing.

    >>> log_softmax(backend.array([0.0, -200.0])).numpy().tolist()
    [0.0, -200.0]
    """
    return apply_one(LogSoftmax(normalize_axis(axis, x.ndim, "log_softmax")), x)


def gelu(x: AnyOperand, *, approximate: bool = False) -> AnyOperand:
    """Return x times the normal distribution function of x.

    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.

    Args:
        x: any tensor of a float dtype.
        approximate: use the tanh form instead of the error function.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> gelu(backend.array([-1.0, 0.0, 1.0])).numpy().round(4)
    array([-0.1587,  0.    ,  0.8413], dtype=float32)
    """
    return apply_one(Gelu(bool(approximate)), x)


def silu(x: AnyOperand) -> AnyOperand:
    """Return x times its sigmoid, x / (1 + exp(-x)).

    Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units", 2018; as "swish": Ramachandran, Zoph
    and Le, "Searching for Activation Functions", 2017.

    Args:
        x: any tensor of a float dtype.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> silu(backend.array([0.0, 1000.0])).numpy().tolist()
    [0.0, 1000.0]
    """
    return apply_one(Silu(), x)


def widen(tensors: Tensors) -> Tensors:
    return [cast(tensor, accumulator(tensor.dtype)) for tensor in tensors]


def take_cotangent(cotangents: Cotangents) -> Any:
    return cotangents[0]


__all__ = [
    "Gelu", "GeluGradient", "LogSoftmax", "Silu", "SiluGradient", "Softmax", "SoftmaxGradient",
    "gelu", "log_softmax", "silu", "softmax",
]  # fmt: skip
