"""Kernels of layer_norm and rms_norm; temporaries are reused in place."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from mithril import ops
from mithril.engine.kernels.nn import wide_dtype
from mithril.engine.kernels.registry import Run, kernel
from mithril.engine.kernels.rows import row_sum
from mithril.types import TensorType

Types = Sequence[TensorType]


@kernel(ops.LayerNorm)
def layer_norm(op: ops.LayerNorm, types: Types, xp: ModuleType) -> Run:
    """Two passes: mean, then variance of what is centred."""
    wide, dtype = wide_dtype(types), types[0].dtype.numpy
    epsilon, count = op.epsilon, types[0].shape[-1]
    add = row_sum(count, wide, xp)

    def run(x: Any, gain: Any, bias: Any) -> Any:
        x = xp.asarray(x, dtype=wide)
        average = add(x)
        average /= count
        y = x - average
        scale = add(y * y)
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
    wide, dtype, count = wide_dtype(types), types[0].dtype.numpy, types[0].shape[-1]
    add = row_sum(count, wide, xp)

    def run(x: Any, gain: Any, average: Any, scale: Any, g: Any) -> Any:
        x, g, column = xp.asarray(x, dtype=wide), xp.asarray(g, dtype=wide), scale[..., None]
        normal = x - average[..., None]
        normal *= column
        rows = g.reshape(-1, count)
        ones = xp.ones(rows.shape[0], dtype=wide)
        dgain = ones @ (rows * normal.reshape(-1, count))
        dbias = ones @ rows
        dx = g * gain
        along = add(dx * normal)
        along /= count
        level = add(dx)
        level /= count
        dx -= level
        normal *= along
        dx -= normal
        dx *= column
        return tuple(xp.asarray(part, dtype=dtype) for part in (dx, dgain, dbias))

    return run


@kernel(ops.RmsNorm)
def rms_norm(op: ops.RmsNorm, types: Types, xp: ModuleType) -> Run:
    """x over the root of its mean square."""
    wide, dtype = wide_dtype(types), types[0].dtype.numpy
    epsilon, count = op.epsilon, types[0].shape[-1]
    add = row_sum(count, wide, xp)

    def run(x: Any, gain: Any) -> Any:
        x = xp.asarray(x, dtype=wide)
        y = x * x
        scale = add(y)
        scale /= count
        scale += epsilon
        scale = 1 / xp.sqrt(scale)
        xp.multiply(x, scale, out=y)
        y *= gain
        return xp.asarray(y, dtype=dtype), scale[..., 0]

    return run


@kernel(ops.RmsNormGradient)
def rms_norm_gradient(op: ops.RmsNormGradient, types: Types, xp: ModuleType) -> Run:
    """The closed form, with the sum over rows as a matrix product."""
    wide, dtype, count = wide_dtype(types), types[0].dtype.numpy, types[0].shape[-1]
    add = row_sum(count, wide, xp)

    def run(x: Any, gain: Any, scale: Any, g: Any) -> Any:
        column = scale[..., None]
        normal = xp.asarray(x, dtype=wide) * column
        work = normal * g
        rows = work.reshape(-1, count)
        dgain = xp.ones(rows.shape[0], dtype=wide) @ rows
        work *= gain
        along = add(work)
        along /= count
        normal *= along
        xp.multiply(g, gain, out=work)
        work -= normal
        work *= column
        return tuple(xp.asarray(part, dtype=dtype) for part in (work, dgain))

    return run
