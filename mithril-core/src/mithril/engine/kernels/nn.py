"""Kernels of the fused ops of neural networks; temporaries are reused in place."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from mithril import ops
from mithril.engine.kernels.blocks import in_blocks, in_row_blocks
from mithril.engine.kernels.elementwise import erf_kernel
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops.nn import SQRT_HALF, TANH_CUBE, TANH_SCALE


@kernel(ops.Softmax)
def softmax(op: ops.Softmax, types: Types, xp: ModuleType) -> Run:
    """Shifted by the maximum before exponentials are taken."""
    axis, wide, dtype = op.axis, accumulator(types[0].dtype), types[0].dtype.numpy

    def step(x: Any, axis: int = axis) -> Any:
        x = xp.asarray(x, dtype=wide)
        y = x - xp.max(x, axis=axis, keepdims=True)
        xp.exp(y, out=y)
        y /= xp.sum(y, axis=axis, keepdims=True)
        return xp.asarray(y, dtype=dtype)

    return _along(step, op.axis, types, xp)


@kernel(ops.SoftmaxGradient)
def softmax_gradient(op: ops.SoftmaxGradient, types: Types, xp: ModuleType) -> Run:
    """y (g - sum(y g))."""
    axis, wide, dtype = op.axis, accumulator(types[0].dtype), types[0].dtype.numpy

    def step(y: Any, g: Any, axis: int = axis) -> Any:
        y, g = xp.asarray(y, dtype=wide), xp.asarray(g, dtype=wide)
        dx = y * g
        total = xp.sum(dx, axis=axis, keepdims=True)
        xp.subtract(g, total, out=dx)
        dx *= y
        return xp.asarray(dx, dtype=dtype)

    return _along(step, op.axis, types, xp)


@kernel(ops.LogSoftmax)
def log_softmax(op: ops.LogSoftmax, types: Types, xp: ModuleType) -> Run:
    """Shifted by the maximum before exponentials are taken."""
    axis, wide, dtype = op.axis, accumulator(types[0].dtype), types[0].dtype.numpy

    def step(x: Any, axis: int = axis) -> Any:
        x = xp.asarray(x, dtype=wide)
        y = x - xp.max(x, axis=axis, keepdims=True)
        y -= xp.log(xp.sum(xp.exp(y), axis=axis, keepdims=True))
        return xp.asarray(y, dtype=dtype)

    return _along(step, op.axis, types, xp)


def _along(step: Run, axis: int, types: Types, xp: ModuleType) -> Run:
    """Return the step on rows if it goes along the last dimension, else on everything at once."""
    *lead, width = types[0].shape
    if axis < len(lead):
        return step
    rows = "r" * len(types)
    run = in_row_blocks(lambda *x: (step(*x, axis=-1),), tuple(lead), width, (rows, "r"), xp)
    return lambda *operands: run(*operands)[0]


@kernel(ops.Gelu)
def gelu(op: ops.Gelu, types: Types, xp: ModuleType) -> Run:
    """The exact or the tanh form."""
    wide, dtype = accumulator(types[0].dtype), types[0].dtype.numpy
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
    wide, dtype = accumulator(types[0].dtype), types[0].dtype.numpy
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


@kernel(ops.Silu)
def silu(op: ops.Silu, types: Types, xp: ModuleType) -> Run:
    """x / (1 + exp(-x)); far below zero, x stays where the exponential is finite."""
    wide, dtype = accumulator(types[0].dtype), types[0].dtype.numpy
    lowest = _lowest_exponent(wide)

    def run(x: Any) -> Any:
        x = xp.maximum(xp.asarray(x, dtype=wide), lowest)
        y = xp.exp(-x)
        y += 1
        xp.divide(x, y, out=y)
        return xp.asarray(y, dtype=dtype)

    return in_blocks(run, xp)


@kernel(ops.SiluGradient)
def silu_gradient(op: ops.SiluGradient, types: Types, xp: ModuleType) -> Run:
    """With the gate s = 1 / (1 + exp(-x)): s (1 + x (1 - s)) times the cotangent."""
    wide, dtype = accumulator(types[0].dtype), types[0].dtype.numpy
    lowest = _lowest_exponent(wide)

    def run(x: Any, g: Any) -> Any:
        x = xp.maximum(xp.asarray(x, dtype=wide), lowest)
        gate = xp.exp(-x)
        gate += 1
        xp.divide(1, gate, out=gate)
        slope = 1 - gate
        slope *= x
        slope += 1
        slope *= gate
        slope *= g
        return xp.asarray(slope, dtype=dtype)

    return in_blocks(run, xp)


def _lowest_exponent(wide: np.dtype[Any]) -> Any:
    """Return an x for which exp(-x) is finite, and x / exp(-x) as good as zero."""
    return wide.type(-math.floor(math.log(np.finfo(wide).max)))
