"""Kernels of softmax, gelu, silu and their gradients.

On CPU MLX's hyperbolic tangent and sigmoid take four times as long as an exponential does here:
both are written with one exponential.
"""

from __future__ import annotations

import math

import mlx.core as mx
from mithril.spi import KernelRun, Types, ops
from mithril.spi.ops import SQRT_HALF, TANH_CUBE, TANH_SCALE

from mithril_mlx.kernels.empty import zero_without_elements
from mithril_mlx.kernels.exponential import error_function, exponential, softmax_along
from mithril_mlx.kernels.precision import in_float32
from mithril_mlx.kernels.table import kernel

FAR = -100.0
"""Below, silu is 0 to the last digit; -inf itself would become NaN."""
LINEAR, CUBIC = -2.0 * TANH_SCALE, -2.0 * TANH_SCALE * TANH_CUBE
"""Minus twice the argument of tanh is x (LINEAR + CUBIC x^2)."""


@kernel(ops.Softmax)
@zero_without_elements
@in_float32
def softmax(op: ops.Softmax, types: Types) -> KernelRun:
    """exp(x) over its sum."""
    return softmax_along(op.axis, types[0])


@kernel(ops.SoftmaxGradient)
@zero_without_elements
@in_float32
def softmax_gradient(op: ops.SoftmaxGradient, types: Types) -> KernelRun:
    """y (g - sum(y g))."""
    axis = op.axis
    return lambda y, g: y * (g - mx.sum(y * g, axis=axis, keepdims=True))


@kernel(ops.LogSoftmax)
@zero_without_elements
@in_float32
def log_softmax(op: ops.LogSoftmax, types: Types) -> KernelRun:
    """Shifted by the maximum first, so that large numbers keep their digits."""
    axis, exp = op.axis, exponential(types[0])

    def run(x: mx.array) -> mx.array:
        x = x - mx.max(x, axis=axis, keepdims=True)
        return x - mx.log(mx.sum(exp(x), axis=axis, keepdims=True))

    return run


@kernel(ops.Gelu)
@in_float32
def gelu(op: ops.Gelu, types: Types) -> KernelRun:
    """The exact form, or that with tanh: (1 + tanh u) / 2 is 1 / (1 + exp(-2 u))."""
    exp, erf = exponential(types[0]), error_function(types[0])
    if op.approximate:
        return lambda x: x / (1.0 + exp(x * (LINEAR + CUBIC * (x * x))))
    return lambda x: (x * 0.5) * (1.0 + erf(x * SQRT_HALF))


@kernel(ops.GeluGradient)
@in_float32
def gelu_gradient(op: ops.GeluGradient, types: Types) -> KernelRun:
    """The derivative of gelu times the cotangent."""
    exp, erf = exponential(types[0]), error_function(types[0])

    def approximate(x: mx.array, g: mx.array) -> mx.array:
        square = x * x
        gate = 1.0 / (1.0 + exp(x * (LINEAR + CUBIC * square)))
        inner = x * (LINEAR + (3.0 * CUBIC) * square)
        return (g * gate) * (1.0 - (1.0 - gate) * inner)

    def exact(x: mx.array, g: mx.array) -> mx.array:
        density = exp((x * x) * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
        return g * (0.5 + 0.5 * erf(x * SQRT_HALF) + x * density)

    return approximate if op.approximate else exact


@kernel(ops.Silu)
@in_float32
def silu(op: ops.Silu, types: Types) -> KernelRun:
    """x / (1 + exp(-x))."""
    exp = exponential(types[0])

    def run(x: mx.array) -> mx.array:
        x = mx.maximum(x, FAR)
        return x / (1.0 + exp(-x))

    return run


@kernel(ops.SiluGradient)
@in_float32
def silu_gradient(op: ops.SiluGradient, types: Types) -> KernelRun:
    """With the gate s = 1 / (1 + exp(-x)): s (1 + x (1 - s)) times the cotangent."""
    exp = exponential(types[0])

    def run(x: mx.array, g: mx.array) -> mx.array:
        x = mx.maximum(x, FAR)
        gate = 1.0 / (1.0 + exp(-x))
        return (g * gate) * (1.0 + x * (1.0 - gate))

    return run
