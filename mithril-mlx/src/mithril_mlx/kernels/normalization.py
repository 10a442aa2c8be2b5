"""Kernels of layer_norm and rms_norm, with the statistics of each row, and of their gradients.

On the GPU the result itself comes from MLX's fused kernel; the statistics are then a pass of their
own, which runs only if somebody asks for them. On CPU `mx.fast` is what is written here.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
from mithril.spi import KernelRun, Types, ops

from mithril_mlx.kernels.empty import zero_without_elements
from mithril_mlx.kernels.precision import in_float32, on_gpu
from mithril_mlx.kernels.table import kernel

Sum = Callable[[mx.array], mx.array]


@kernel(ops.LayerNorm)
@zero_without_elements
@in_float32
def layer_norm(op: ops.LayerNorm, types: Types) -> KernelRun:
    """Two passes: mean, then variance of what is centred."""
    epsilon, share, is_fast = op.epsilon, _share(types), on_gpu()

    def run(x: mx.array, gain: mx.array, bias: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        average = mx.sum(x, axis=-1, keepdims=True) * share
        y = x - average
        scale = mx.rsqrt(mx.sum(y * y, axis=-1, keepdims=True) * share + epsilon)
        y = mx.fast.layer_norm(x, gain, bias, epsilon) if is_fast else y * scale * gain + bias
        return y, mx.squeeze(average, -1), mx.squeeze(scale, -1)

    return run


@kernel(ops.LayerNormGradient)
@zero_without_elements
@in_float32
def layer_norm_gradient(op: ops.LayerNormGradient, types: Types) -> KernelRun:
    """The closed form: half the passes of the gradient of `mx.fast.layer_norm` on CPU."""
    share, over_rows = _share(types), _over_rows(types)

    def run(
        x: mx.array, gain: mx.array, average: mx.array, scale: mx.array, g: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        column = mx.expand_dims(scale, -1)
        normal = (x - mx.expand_dims(average, -1)) * column
        inner, product = g * gain, g * normal
        level = mx.sum(inner, axis=-1, keepdims=True) * share
        along = mx.sum(product * gain, axis=-1, keepdims=True) * share
        return (inner - level - normal * along) * column, over_rows(product), over_rows(g)

    return run


@kernel(ops.RmsNorm)
@zero_without_elements
@in_float32
def rms_norm(op: ops.RmsNorm, types: Types) -> KernelRun:
    """x over the root of its mean square."""
    epsilon, share, is_fast = op.epsilon, _share(types), on_gpu()

    def run(x: mx.array, gain: mx.array) -> tuple[mx.array, mx.array]:
        scale = mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) * share + epsilon)
        y = mx.fast.rms_norm(x, gain, epsilon) if is_fast else x * scale * gain
        return y, mx.squeeze(scale, -1)

    return run


@kernel(ops.RmsNormGradient)
@zero_without_elements
@in_float32
def rms_norm_gradient(op: ops.RmsNormGradient, types: Types) -> KernelRun:
    """The closed form."""
    share, over_rows = _share(types), _over_rows(types)

    def run(x: mx.array, gain: mx.array, scale: mx.array, g: mx.array) -> tuple[mx.array, mx.array]:
        column = mx.expand_dims(scale, -1)
        normal = x * column
        product = g * normal
        along = mx.sum(product * gain, axis=-1, keepdims=True) * share
        return (g * gain - normal * along) * column, over_rows(product)

    return run


def _share(types: Types) -> float:
    return 1.0 / max(1, types[0].shape[-1])


def _over_rows(types: Types) -> Sum:
    """Return the function that adds up all rows of the first operand's shape."""
    rows = tuple(range(types[0].rank - 1))
    return (lambda x: mx.sum(x, axis=rows)) if rows else (lambda x: x)
