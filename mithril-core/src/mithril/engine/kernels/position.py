"""Kernel of rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.position import Rope
from mithril.types import TensorType

Types = Sequence[TensorType]


@kernel(Rope)
def rope(op: Rope, types: Types, xp: ModuleType) -> Run:
    """Angles in float64, once where no operand changes them; then four products per pair."""
    b, s, h, d = types[0].shape
    dtype = types[0].dtype.numpy
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    speed = op.base ** (xp.arange(0, d, 2, dtype=np.float64) / -d)
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

    def rotate(x: Any, turn: Any, tilt: Any) -> Any:
        result = xp.empty((b, s, h, d), dtype=dtype)
        left, right = (xp.asarray(x[half], dtype=wide) for half in (first, second))
        part = left * turn
        part -= right * tilt
        result[first] = part
        part = right * turn
        part += left * tilt
        result[second] = part
        return result

    if len(types) > 1:
        return lambda x, positions: rotate(x, *table(positions))
    fixed = table(0)
    return lambda x: rotate(x, *fixed)
