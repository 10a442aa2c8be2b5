"""Kernel of rotary position embedding.

Angles are computed in float64 on CPU, as in the core: in float32, as in `mx.fast.rope`, that of a
far position has lost its last digits.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
from mithril.spi import KernelRun, Types
from mithril.spi.ops import Rope, rope_speeds

from mithril_mlx.kernels import double
from mithril_mlx.kernels.precision import in_float32, on_gpu
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype, to_mlx

Rotation = Callable[[mx.array, mx.array, mx.array], mx.array]


@kernel(Rope)
@in_float32
def rope(op: Rope, types: Types) -> KernelRun:
    """The table of angles, once if no operand changes it; then two products an element."""
    _, s, _, d = types[0].shape
    wide, exact = types[0].dtype.numpy, np.dtype(np.float32 if on_gpu() else np.float64)
    speed = np.asarray(rope_speeds(op.base, op.scaling, d), np.float64)
    rotate = _rotate_interleaved(types) if op.interleaved else _halves(types)
    sign = -1.0 if op.inverse else 1.0
    if len(types) == 1:
        angle = (np.arange(s) + op.offset)[:, None, None] * speed
        turn, tilt = (to_mlx(x.astype(wide)) for x in (np.cos(angle), sign * np.sin(angle)))
        return lambda x: rotate(x, turn, tilt)
    steps, counted = (to_mlx(x.astype(exact)) for x in (sign * speed, np.arange(s) + op.offset))
    first = counted if types[1].rank == 0 else float(op.offset)
    dtype, made = mlx_dtype(types[0].dtype), mlx_dtype(exact)
    cos, sin = (mx.cos, mx.sin) if on_gpu() else (double.cos, double.sin)

    def run(x: mx.array, positions: mx.array) -> mx.array:
        at = positions.astype(made) + first
        angle = mx.expand_dims(at, (-2, -1)) * steps
        return rotate(x, cos(angle).astype(dtype), sin(angle).astype(dtype))

    return run


def _halves(types: Types) -> Rotation:
    half = types[0].shape[3] // 2

    def rotate(x: mx.array, turn: mx.array, tilt: mx.array) -> mx.array:
        left, right = x[..., :half], x[..., half:]
        turned = [left * turn - right * tilt, right * turn + left * tilt]
        return mx.concatenate(turned, axis=-1)

    return rotate


def _rotate_interleaved(types: Types) -> Rotation:
    shape = types[0].shape
    pairs = (*shape[:3], shape[3] // 2, 2)

    def rotate(x: mx.array, turn: mx.array, tilt: mx.array) -> mx.array:
        x = x.reshape(pairs)
        left, right = x[..., 0], x[..., 1]
        turned = [left * turn - right * tilt, right * turn + left * tilt]
        return mx.stack(turned, axis=-1).reshape(shape)

    return rotate
