"""Fused ops of neural networks: softmax, gelu, layer_norm, and their gradients.

Each forward op expands into smaller ops, so an engine needs no kernel for it; each gradient is an
op of its own, linear in the cotangent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import GraphError, ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import AnyOperand, apply, apply_one
from mithril.ir.rule import Rule
from mithril.ops.choice import stop_gradient
from mithril.ops.elementwise import FloatOnly, cast
from mithril.ops.functions import erf, exp, log, rsqrt, tanh
from mithril.ops.reduce import accumulator, max, mean, sum
from mithril.ops.shape import normalize_axis, reshape
from mithril.types import TensorType

SQRT_HALF = math.sqrt(0.5)
TANH_SCALE = math.sqrt(2.0 / math.pi)
TANH_CUBE = 0.044715


def dim_names(rank: int) -> list[str]:
    return [f"d{i}" for i in range(rank)]


def require_float(t: TensorType, what: str) -> None:
    if not t.dtype.is_float:
        raise ShapeError(f"{what} needs a float dtype, not {t}; cast it first")


def only_first(what: str, cotangents: Cotangents) -> Any:
    """Return the cotangent of the first result; the others are helpers of the backward op."""
    if any(c is not None for c in cotangents[1:]) or cotangents[0] is None:
        raise GraphError(
            f"gradient through the saved statistics of {what} is not defined; compute them with "
            f"their own ops"
        )
    return cotangents[0]


# ------------------------------------------------------------------ softmax


@register
@dataclass(frozen=True)
class Softmax(Op):
    """exp(x) normalised to sum 1 along a dimension, which is whole."""

    name: ClassVar[str] = "softmax"
    axis: int

    def infer(self, inputs: Types) -> Types:
        return [_check_along(inputs[0], self.axis, "softmax")]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [apply_one(SoftmaxGradient(self.axis), outputs[0], given(cotangents))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        dims = " ".join(dim_names(inputs[0].rank))
        return Rule.parse(f"{dims} -> {dims}", inputs, outputs, whole=[f"d{self.axis}"])

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(12 * inputs[0].size, 2 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        (x,) = widened(inputs)
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
        (y, g), c = inputs, given(cotangents)
        inner = sum(y * c, self.axis, keepdims=True)
        through_y = c * (g - sum(y * g, self.axis, keepdims=True)) - g * inner
        return [through_y, y * (c - inner)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        dims = " ".join(dim_names(inputs[0].rank))
        text = f"{dims}, {dims} -> {dims}"
        return Rule.parse(text, inputs, outputs, whole=[f"d{self.axis}"], linear=((1,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(4 * inputs[0].size, 3 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        y, g = widened(inputs)
        return [cast(y * (g - sum(y * g, self.axis, keepdims=True)), inputs[0].dtype)]


@register
@dataclass(frozen=True)
class LogSoftmax(Op):
    """The logarithm of softmax, x - log(sum(exp(x))) along a dimension, which is whole."""

    name: ClassVar[str] = "log_softmax"
    axis: int

    def infer(self, inputs: Types) -> Types:
        return [_check_along(inputs[0], self.axis, "log_softmax")]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g = given(cotangents)
        return [g - exp(outputs[0]) * sum(g, self.axis, keepdims=True)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return Softmax(self.axis).rule(inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(12 * inputs[0].size, 2 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        (x,) = widened(inputs)
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
        return [apply_one(GeluGradient(self.approximate), inputs[0], given(cotangents))]

    def expand(self, inputs: Tensors) -> Tensors:
        (x,) = inputs
        if self.approximate:
            return [x * 0.5 * (1.0 + tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x)))]
        return [x * 0.5 * (1.0 + erf(x * SQRT_HALF))]


@register
@dataclass(frozen=True)
class GeluGradient(FloatOnly):
    """The cotangent of gelu's operand; operands (x, cotangent)."""

    name: ClassVar[str] = "gelu_gradient"
    flops: ClassVar[int] = 25
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((1,),)
    approximate: bool

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, c = inputs[0], given(cotangents)
        if self.approximate:
            raise GraphError(
                "second gradient of the tanh gelu is not defined; use approximate=False"
            )
        density = exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
        through_x = c * inputs[1] * density * (2.0 - x * x)
        return [through_x, apply_one(GeluGradient(False), x, c)]

    def expand(self, inputs: Tensors) -> Tensors:
        x, g = inputs
        if self.approximate:
            t = tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x))
            slope = TANH_SCALE * (1.0 + 3.0 * TANH_CUBE * x * x)
            return [g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)]
        density = exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
        return [g * (0.5 * (1.0 + erf(x * SQRT_HALF)) + x * density)]


# ------------------------------------------------------------------ layer_norm


@register
@dataclass(frozen=True)
class LayerNorm(Op):
    """x normalised along its last dimension, times gain plus bias (Ba, Kiros, Hinton, 2016).

    Operands (x, gain, bias); results (y, mean, reciprocal standard deviation), the last two in at
    least float32.
    """

    name: ClassVar[str] = "layer_norm"
    epsilon: float

    def infer(self, inputs: Types) -> Types:
        x, gain, bias = inputs
        require_float(x, "layer_norm")
        if not x.rank or gain != x.with_shape(x.shape[-1:]) or bias != gain:
            raise ShapeError(
                f"layer_norm of {x} has gain {gain} and bias {bias}; both need one value per "
                f"element of the last dimension"
            )
        rows = TensorType(x.shape[:-1], accumulator(x.dtype))
        return [x, rows, rows]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g = only_first("layer_norm", cotangents)
        (x, gain, _), (_, average, scale) = inputs, outputs
        return apply(LayerNormGradient(), x, gain, average, scale, g)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[0].rank - 1))
        text = f"{rows} n, n, n -> {rows} n, {rows}, {rows}"
        return Rule.parse(text, inputs, outputs, whole=["n"])

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(8 * inputs[0].size, 2 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, gain, bias = widened(inputs)
        average = mean(x, -1, keepdims=True)
        centred = x - average
        scale = rsqrt(mean(centred * centred, -1, keepdims=True) + self.epsilon)
        rows = x.shape[:-1]
        y = cast(centred * scale * gain + bias, inputs[0].dtype)
        return [y, reshape(average, rows), reshape(scale, rows)]


@register
@dataclass(frozen=True)
class LayerNormGradient(Op):
    """The cotangents of layer_norm's operands; operands (x, gain, mean, rstd, cotangent)."""

    name: ClassVar[str] = "layer_norm_gradient"

    def infer(self, inputs: Types) -> Types:
        x, gain = inputs[0], inputs[1]
        return [x, gain, gain]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        raise GraphError("second gradient of layer_norm is not defined; write it with smaller ops")

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[0].rank - 1))
        text = f"{rows} n, n, {rows}, {rows}, {rows} n -> {rows} n, n, n"
        return Rule.parse(text, inputs, outputs, whole=["n"], linear=((4,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(14 * inputs[0].size, 3 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, gain, average, scale, g = widened(inputs)
        rows = tuple(range(x.ndim - 1))
        column = (*average.shape, 1)
        normal = (x - reshape(average, column)) * reshape(scale, column)
        inner = g * gain
        dx = inner - mean(inner, -1, keepdims=True)
        dx = dx - normal * mean(inner * normal, -1, keepdims=True)
        found = [dx * reshape(scale, column), sum(g * normal, rows), sum(g, rows)]
        return [cast(tensor, inputs[0].dtype) for tensor in found]


# ------------------------------------------------------------------ functions over operands


def softmax(x: AnyOperand, axis: int = -1) -> AnyOperand:
    """Return exp(x) normalised to sum 1 along a dimension."""
    return apply_one(Softmax(normalize_axis(axis, x.ndim, "softmax")), x)


def log_softmax(x: AnyOperand, axis: int = -1) -> AnyOperand:
    """Return the logarithm of softmax along a dimension."""
    return apply_one(LogSoftmax(normalize_axis(axis, x.ndim, "log_softmax")), x)


def gelu(x: AnyOperand, *, approximate: bool = False) -> AnyOperand:
    """Return x times the normal distribution function of x.

    Args:
        x: any float tensor.
        approximate: use the tanh form instead of the error function.
    """
    return apply_one(Gelu(bool(approximate)), x)


def layer_norm(x: Any, gain: Any, bias: Any, epsilon: float = 1e-5) -> Any:
    """Return x normalised along its last dimension, times gain plus bias.

    Args:
        x: [..., n], of a float dtype.
        gain: [n].
        bias: [n].
        epsilon: added to the variance.
    """
    return apply(LayerNorm(float(epsilon)), x, gain, bias)[0]


def widened(tensors: Tensors) -> Tensors:
    return [cast(tensor, accumulator(tensor.dtype)) for tensor in tensors]


def given(cotangents: Cotangents) -> Any:
    return cotangents[0]


__all__ = [
    "Gelu", "GeluGradient", "LayerNorm",
    "LayerNormGradient", "LogSoftmax", "Softmax", "SoftmaxGradient", "gelu",
    "layer_norm", "log_softmax", "softmax",
]  # fmt: skip
