"""Kernels of the fused ops of neural networks; temporaries are reused in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril import ops
from mithril.engine.kernels.blocks import in_blocks
from mithril.engine.kernels.elementwise import erf_kernel
from mithril.engine.kernels.registry import Run, kernel
from mithril.errors import ShapeError
from mithril.ops.nn import SQRT_HALF, TANH_CUBE, TANH_SCALE
from mithril.types import TensorType

Types = Sequence[TensorType]


def _wide(types: Types) -> np.dtype[Any]:
    """The dtype to compute in: 16-bit floats are widened to float32."""
    dtype = types[0].dtype
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype.numpy


@kernel(ops.Softmax)
def softmax(op: ops.Softmax, types: Types, xp: ModuleType) -> Run:
    """Shifted by the maximum before exponentials are taken."""
    axis, wide, dtype = op.axis, _wide(types), types[0].dtype.numpy

    def run(x: Any) -> Any:
        x = xp.asarray(x, dtype=wide)
        y = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        y /= xp.sum(y, axis=axis, keepdims=True)
        return xp.asarray(y, dtype=dtype)

    return run


@kernel(ops.SoftmaxGradient)
def softmax_gradient(op: ops.SoftmaxGradient, types: Types, xp: ModuleType) -> Run:
    """y (g - sum(y g))."""
    axis, wide, dtype = op.axis, _wide(types), types[0].dtype.numpy

    def run(y: Any, g: Any) -> Any:
        y, g = xp.asarray(y, dtype=wide), xp.asarray(g, dtype=wide)
        return xp.asarray(y * (g - xp.sum(y * g, axis=axis, keepdims=True)), dtype=dtype)

    return run


@kernel(ops.LogSoftmax)
def log_softmax(op: ops.LogSoftmax, types: Types, xp: ModuleType) -> Run:
    """Shifted by the maximum before exponentials are taken."""
    axis, wide, dtype = op.axis, _wide(types), types[0].dtype.numpy

    def run(x: Any) -> Any:
        x = xp.asarray(x, dtype=wide)
        y = x - xp.max(x, axis=axis, keepdims=True)
        y -= xp.log(xp.sum(xp.exp(y), axis=axis, keepdims=True))
        return xp.asarray(y, dtype=dtype)

    return run


@kernel(ops.Gelu)
def gelu(op: ops.Gelu, types: Types, xp: ModuleType) -> Run:
    """The exact or the tanh form."""
    wide, dtype = _wide(types), types[0].dtype.numpy
    step = _tanh_step(xp) if op.approximate else _erf_step(types, wide, xp)

    def run(x: Any) -> Any:
        x = xp.asarray(x, dtype=wide)
        y = step(x)
        y += 1
        y *= x
        y *= 0.5
        return xp.asarray(y, dtype=dtype)

    return in_blocks(run, xp)


def _tanh_step(xp: ModuleType) -> Run:
    def step(x: Any) -> Any:
        y = x * x
        y *= TANH_CUBE
        y += 1
        y *= x
        y *= TANH_SCALE
        return xp.tanh(y)

    return step


def _erf_step(types: Types, wide: np.dtype[Any], xp: ModuleType) -> Run:
    erf = erf_kernel(wide, xp)
    return lambda x: erf(x * SQRT_HALF)


@kernel(ops.GeluGradient)
def gelu_gradient(op: ops.GeluGradient, types: Types, xp: ModuleType) -> Run:
    """The derivative of gelu times the cotangent."""
    wide, dtype = _wide(types), types[0].dtype.numpy
    derivative = _tanh_slope(xp) if op.approximate else _erf_slope(types, wide, xp)

    def run(x: Any, g: Any) -> Any:
        slope = derivative(xp.asarray(x, dtype=wide))
        slope *= g
        return xp.asarray(slope, dtype=dtype)

    return in_blocks(run, xp)


def _tanh_slope(xp: ModuleType) -> Run:
    step = _tanh_step(xp)

    def slope(x: Any) -> Any:
        t = step(x)
        inner = TANH_SCALE * (1 + 3 * TANH_CUBE * x * x)
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner

    return slope


def _erf_slope(types: Types, wide: np.dtype[Any], xp: ModuleType) -> Run:
    step = _erf_step(types, wide, xp)
    norm = 1.0 / math.sqrt(2.0 * math.pi)

    def slope(x: Any) -> Any:
        y = step(x)
        y += 1
        y *= 0.5
        density = x * x
        density *= -0.5
        density = xp.exp(density)
        density *= norm
        density *= x
        y += density
        return y

    return slope


@kernel(ops.LayerNorm)
def layer_norm(op: ops.LayerNorm, types: Types, xp: ModuleType) -> Run:
    """Two passes: mean, then variance of what is centred."""
    wide, dtype = _wide(types), types[0].dtype.numpy
    epsilon, count = op.epsilon, types[0].shape[-1]

    def run(x: Any, gain: Any, bias: Any) -> Any:
        x = xp.asarray(x, dtype=wide)
        average = xp.sum(x, axis=-1, keepdims=True)
        average /= count
        y = x - average
        scale = xp.sum(y * y, axis=-1, keepdims=True)
        scale /= count
        scale += epsilon
        scale = 1 / xp.sqrt(scale)
        y *= scale
        y *= gain
        y += bias
        rows = (average[..., 0], scale[..., 0])
        return (xp.asarray(y, dtype=dtype), *rows)

    return run


@kernel(ops.LayerNormGradient)
def layer_norm_gradient(op: ops.LayerNormGradient, types: Types, xp: ModuleType) -> Run:
    """The closed form, with the sums over rows as matrix products."""
    wide, dtype, count = _wide(types), types[0].dtype.numpy, types[0].shape[-1]

    def run(x: Any, gain: Any, average: Any, scale: Any, g: Any) -> Any:
        x, g, column = xp.asarray(x, dtype=wide), xp.asarray(g, dtype=wide), scale[..., None]
        normal = x - average[..., None]
        normal *= column
        rows = g.reshape(-1, count)
        ones = xp.ones(rows.shape[0], dtype=wide)
        dgain = ones @ (rows * normal.reshape(-1, count))
        dbias = ones @ rows
        dx = g * gain
        along = xp.sum(dx * normal, axis=-1, keepdims=True)
        along /= count
        level = xp.sum(dx, axis=-1, keepdims=True)
        level /= count
        dx -= level
        normal *= along
        dx -= normal
        dx *= column
        return tuple(xp.asarray(part, dtype=dtype) for part in (dx, dgain, dbias))

    return run


@kernel(ops.CrossEntropy)
def cross_entropy(op: ops.CrossEntropy, types: Types, xp: ModuleType) -> Run:
    """log sum exp minus the logit of the target."""
    wide, dtype, classes = _wide(types), types[0].dtype.numpy, types[0].shape[-1]

    def run(logits: Any, targets: Any) -> Any:
        _check_classes(targets, classes)
        logits = xp.asarray(logits, dtype=wide)
        top = xp.max(logits, axis=-1, keepdims=True)
        powers = logits - top
        xp.exp(powers, out=powers)
        total = xp.log(xp.sum(powers, axis=-1)) + top[..., 0]
        hit = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return xp.asarray(total - hit, dtype=dtype), total

    return run


@kernel(ops.CrossEntropyGradient)
def cross_entropy_gradient(op: ops.CrossEntropyGradient, types: Types, xp: ModuleType) -> Run:
    """(softmax - one hot) times the cotangent."""
    wide, dtype, classes = _wide(types), types[0].dtype.numpy, types[0].shape[-1]

    def run(logits: Any, targets: Any, total: Any, g: Any) -> Any:
        slope = xp.exp(xp.asarray(logits, dtype=wide) - total[..., None])
        flat, rows = slope.reshape(-1, classes), targets.reshape(-1)
        flat[np.arange(rows.size), rows] -= 1
        slope = flat.reshape(slope.shape)
        slope *= g[..., None]
        return xp.asarray(slope, dtype=dtype)

    return run


def _check_classes(targets: Any, classes: int) -> None:
    if targets.size and (targets.min() < 0 or targets.max() >= classes):
        raise ShapeError(
            f"cross_entropy has targets from {targets.min()} to {targets.max()} for {classes} "
            f"classes; targets must lie in [0, {classes})"
        )
