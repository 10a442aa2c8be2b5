"""Kernels of layer_norm and rms_norm, some rows at a time; temporaries are reused in place."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from mithril import ops
from mithril.engine.kernels.blocks import in_row_blocks
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.engine.kernels.rows import row_sum


@kernel(ops.LayerNorm)
def layer_norm(op: ops.LayerNorm, types: Types, xp: ModuleType) -> Run:
    """Two passes: mean, then variance of what is centred."""
    wide, dtype = accumulator(types[0].dtype), types[0].dtype.numpy
    epsilon, (*lead, count) = op.epsilon, types[0].shape
    add = row_sum(xp)

    def step(x: Any, gain: Any, bias: Any, out: Any = None) -> Any:
        x = xp.asarray(x, dtype=wide)
        average = add(x)
        average /= count
        y = xp.subtract(x, average, out=out)
        scale = add(y * y)
        scale /= count
        scale += epsilon
        scale = 1 / xp.sqrt(scale)
        y *= scale
        y *= gain
        y += bias
        return xp.asarray(y, dtype=dtype), average[..., 0], scale[..., 0]

    return in_row_blocks(step, tuple(lead), count, ("rww", "rrr"), xp, writes=wide == dtype)


@kernel(ops.LayerNormGradient)
def layer_norm_gradient(op: ops.LayerNormGradient, types: Types, xp: ModuleType) -> Run:
    """The closed form, with the sums over rows as matrix products."""
    wide, dtype, (*lead, count) = accumulator(types[0].dtype), types[0].dtype.numpy, types[0].shape
    add = row_sum(xp)

    def step(x: Any, gain: Any, average: Any, scale: Any, g: Any, out: Any = None) -> Any:
        x, g, column = xp.asarray(x, dtype=wide), xp.asarray(g, dtype=wide), scale[..., None]
        normal = x - average[..., None]
        normal *= column
        ones = xp.ones(x.shape[0], dtype=wide)
        dx = xp.multiply(g, normal, out=out)
        dgain, dbias = ones @ dx, ones @ g
        dx *= gain
        along = add(dx)
        along /= count
        xp.multiply(g, gain, out=dx)
        level = add(dx)
        level /= count
        dx -= level
        normal *= along
        dx -= normal
        dx *= column
        return xp.asarray(dx, dtype=dtype), dgain, dbias

    run = in_row_blocks(step, tuple(lead), count, ("rwrrr", "r++"), xp, writes=wide == dtype)
    return _round(run, dtype, xp)


@kernel(ops.RmsNorm)
def rms_norm(op: ops.RmsNorm, types: Types, xp: ModuleType) -> Run:
    """x over the root of its mean square."""
    wide, dtype = accumulator(types[0].dtype), types[0].dtype.numpy
    epsilon, (*lead, count) = op.epsilon, types[0].shape
    add = row_sum(xp)

    def step(x: Any, gain: Any, out: Any = None) -> Any:
        x = xp.asarray(x, dtype=wide)
        y = xp.multiply(x, x, out=out)
        scale = add(y)
        scale /= count
        scale += epsilon
        scale = 1 / xp.sqrt(scale)
        xp.multiply(x, scale, out=y)
        y *= gain
        return xp.asarray(y, dtype=dtype), scale[..., 0]

    return in_row_blocks(step, tuple(lead), count, ("rw", "rr"), xp, writes=wide == dtype)


@kernel(ops.RmsNormGradient)
def rms_norm_gradient(op: ops.RmsNormGradient, types: Types, xp: ModuleType) -> Run:
    """The closed form, with the sum over rows as a matrix product."""
    wide, dtype, (*lead, count) = accumulator(types[0].dtype), types[0].dtype.numpy, types[0].shape
    add = row_sum(xp)

    def step(x: Any, gain: Any, scale: Any, g: Any, out: Any = None) -> Any:
        g, column = xp.asarray(g, dtype=wide), scale[..., None]
        normal = xp.asarray(x, dtype=wide) * column
        dx = xp.multiply(normal, g, out=out)
        dgain = xp.ones(dx.shape[0], dtype=wide) @ dx
        dx *= gain
        along = add(dx)
        along /= count
        normal *= along
        xp.multiply(g, gain, out=dx)
        dx -= normal
        dx *= column
        return xp.asarray(dx, dtype=dtype), dgain

    run = in_row_blocks(step, tuple(lead), count, ("rwrr", "r+"), xp, writes=wide == dtype)
    return _round(run, dtype, xp)


def _round(run: Run, dtype: np.dtype[Any], xp: ModuleType) -> Run:
    """Return the results in the operands' dtype, sums too, which are kept in a wider one."""
    return lambda *operands: tuple(xp.asarray(y, dtype=dtype) for y in run(*operands))
