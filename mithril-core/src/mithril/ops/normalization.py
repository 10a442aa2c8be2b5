"""Normalisation along the last dimension: layer_norm, rms_norm, and their gradients.

The statistics of each row are results of their own, in at least float32, so that the backward op
need not compute them again. The normalised dimension is whole for the fused ops; it may be split
when they are expanded, at the price of one number per row for each mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply
from mithril.ir.rule import Rule
from mithril.ops.batch_norm import promote_floats
from mithril.ops.elementwise import cast
from mithril.ops.expansion import gradient_by_expansion, gradient_of_fused
from mithril.ops.functions import rsqrt
from mithril.ops.nn import dim_names, require_float, widen
from mithril.ops.reduce import accumulator, mean, sum
from mithril.ops.shape import reshape
from mithril.types import TensorType


@register
@dataclass(frozen=True)
class LayerNorm(Op):
    """x normalised along its last dimension, times gain plus bias (Ba, Kiros, Hinton, 2016).

    Operands (x, gain, bias); results (y, mean, reciprocal standard deviation), the last two in at
    least float32 and without the last dimension.
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
        (x, gain, _), (_, average, scale) = inputs, outputs

        def differentiate(g: Any) -> Cotangents:
            return apply(LayerNormGradient(), x, gain, average, scale, g)

        return gradient_of_fused(self, inputs, cotangents, differentiate)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[0].rank - 1))
        text = f"{rows} n, n, n -> {rows} n, {rows}, {rows}"
        return Rule.parse(text, inputs, outputs, expandable=["n"])

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(8 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, gain, bias = widen(inputs)
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
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[0].rank - 1))
        text = f"{rows} n, n, {rows}, {rows}, {rows} n -> {rows} n, n, n"
        return Rule.parse(text, inputs, outputs, expandable=["n"], linear=((4,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(14 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, gain, average, scale, g = widen(inputs)
        rows = tuple(range(x.ndim - 1))
        column = (*average.shape, 1)
        normal = (x - reshape(average, column)) * reshape(scale, column)
        inner = g * gain
        dx = inner - mean(inner, -1, keepdims=True)
        dx = dx - normal * mean(inner * normal, -1, keepdims=True)
        found = [dx * reshape(scale, column), sum(g * normal, rows), sum(g, rows)]
        return [cast(tensor, inputs[0].dtype) for tensor in found]


@register
@dataclass(frozen=True)
class RmsNorm(Op):
    """x over its root mean square along the last dimension, times gain (Zhang, Sennrich, 2019).

    Operands (x, gain); results (y, reciprocal of the root mean square), the second in at least
    float32 and without the last dimension.
    """

    name: ClassVar[str] = "rms_norm"
    epsilon: float

    def infer(self, inputs: Types) -> Types:
        x, gain = inputs
        require_float(x, "rms_norm")
        if not x.rank or gain != x.with_shape(x.shape[-1:]):
            raise ShapeError(
                f"rms_norm of {x} has gain {gain}; it needs one value per element of the last "
                f"dimension"
            )
        return [x, TensorType(x.shape[:-1], accumulator(x.dtype))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        def differentiate(g: Any) -> Cotangents:
            return apply(RmsNormGradient(), *inputs, outputs[1], g)

        return gradient_of_fused(self, inputs, cotangents, differentiate)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[0].rank - 1))
        return Rule.parse(f"{rows} n, n -> {rows} n, {rows}", inputs, outputs, expandable=["n"])

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(4 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, gain = widen(inputs)
        scale = rsqrt(mean(x * x, -1, keepdims=True) + self.epsilon)
        return [cast(x * scale * gain, inputs[0].dtype), reshape(scale, x.shape[:-1])]


@register
@dataclass(frozen=True)
class RmsNormGradient(Op):
    """The cotangents of rms_norm's operands; operands (x, gain, reciprocal rms, cotangent)."""

    name: ClassVar[str] = "rms_norm_gradient"

    def infer(self, inputs: Types) -> Types:
        return [inputs[0], inputs[1]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[0].rank - 1))
        text = f"{rows} n, n, {rows}, {rows} n -> {rows} n, n"
        return Rule.parse(text, inputs, outputs, expandable=["n"], linear=((3,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(10 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, gain, scale, g = widen(inputs)
        column = reshape(scale, (*scale.shape, 1))
        normal, inner = x * column, g * gain
        dx = (inner - normal * mean(inner * normal, -1, keepdims=True)) * column
        found = [dx, sum(g * normal, tuple(range(x.ndim - 1)))]
        return [cast(tensor, inputs[0].dtype) for tensor in found]


# ------------------------------------------------------------------ functions over operands


def layer_norm(x: Any, gain: Any, bias: Any, epsilon: float = 1e-5) -> Any:
    """Return x normalised along its last dimension, times gain plus bias.

    Ba, Kiros and Hinton, "Layer Normalization", 2016. 16-bit floats are computed in float32.

    Args:
        x: [..., n], of a float dtype.
        gain: [n].
        bias: [n].
        epsilon: added to the variance.

    Returns:
        [..., n], of the dtype that x, gain and bias meet in.

    Raises:
        ShapeError: gain or bias does not fit x.

    >>> x, one, zero = backend.array([[1.0, 3.0]]), backend.ones(2), backend.zeros(2)
    >>> layer_norm(x, one, zero, epsilon=0.0).numpy().tolist()
    [[-1.0, 1.0]]
    """
    return apply(LayerNorm(float(epsilon)), *promote_floats(x, gain, bias))[0]


def rms_norm(x: Any, gain: Any, epsilon: float = 1e-6) -> Any:
    """Return x divided by its root mean square along the last dimension, times gain.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019. 16-bit floats are computed in
    float32.

    Args:
        x: [..., n], of a float dtype.
        gain: [n].
        epsilon: added to the mean square.

    Returns:
        [..., n], of the dtype that x and gain meet in.

    Raises:
        ShapeError: gain does not fit x.

    >>> rms_norm(backend.array([[1.0, -7.0]]), backend.ones(2), epsilon=0.0).numpy().round(3)
    array([[ 0.2, -1.4]], dtype=float32)
    """
    return apply(RmsNorm(float(epsilon)), *promote_floats(x, gain))[0]


__all__ = [
    "LayerNorm", "LayerNormGradient", "RmsNorm", "RmsNormGradient", "layer_norm", "rms_norm",
]  # fmt: skip
