"""Kernel of rotary position embedding."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.blocks import ROWS_BLOCK
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops.position import Rope
from mithril.ops.rope_scaling import speeds


@kernel(Rope)
def rope(op: Rope, types: Types, xp: ModuleType) -> Run:
    """Angles in float64, once if no operand changes them; then four products for each pair."""
    b, s, h, d = types[0].shape
    dtype = types[0].dtype.numpy
    wide = accumulator(types[0].dtype)
    speed = xp.asarray(speeds(op.base, op.scaling, d), dtype=np.float64)
    counted = xp.arange(s, dtype=np.float64)
    halves = (
        (slice(0, d, 2), slice(1, d, 2)) if op.interleaved else (slice(d // 2), slice(d // 2, d))
    )
    first, second = ((..., half) for half in halves)

    def table(positions: Any) -> tuple[Any, Any]:
        at = xp.asarray(positions, dtype=np.float64) + op.offset
        angle = (at if at.ndim else counted + at)[..., None, None] * speed
        tilt = xp.sin(angle)
        turn, tilt = xp.cos(angle), -tilt if op.inverse else tilt
        return xp.asarray(turn, dtype=wide), xp.asarray(tilt, dtype=wide)

    step = max(1, ROWS_BLOCK // max(1, b * h * d))

    def rotate(x: Any, turn: Any, tilt: Any) -> Any:
        result = xp.empty((b, s, h, d), dtype=dtype)
        for start in range(0, s, step):
            rows = (..., slice(start, start + step), slice(None), slice(None))
            here, there, cosine, sine = x[rows], result[rows], turn[rows], tilt[rows]
            left, right = (xp.asarray(here[half], dtype=wide) for half in (first, second))
            part = left * cosine
            part -= right * sine
            there[first] = part
            part = right * cosine
            part += left * sine
            there[second] = part
        return result

    if len(types) > 1:
        return lambda x, positions: rotate(x, *table(positions))
    fixed = table(0)
    return lambda x: rotate(x, *fixed)
