"""Kernels of mean pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.conv import ALL, accumulator, pool_taps
from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.pool import AvgPool, AvgPoolGradient, MeanPooling, window_sizes
from mithril.types import TensorType

Types = Sequence[TensorType]


@kernel(AvgPool)
def avg_pool(op: AvgPool, types: Types, xp: ModuleType) -> Run:
    """The sum over the taps, divided by how many there are."""
    (result,) = op.infer(types)
    taps, wide = pool_taps(op, types[0], result), accumulator(result.dtype)
    share = _shares(op, types[0], result)

    def run(x: Any) -> Any:
        y = xp.zeros(result.shape, dtype=wide)
        for _, read, written in taps:
            y[(*ALL, *written)] += x[(*ALL, *read)]
        return xp.asarray(y * share, dtype=result.dtype.numpy)

    return run


@kernel(AvgPoolGradient)
def avg_pool_gradient(op: AvgPoolGradient, types: Types, xp: ModuleType) -> Run:
    """Hand every tap its share of the result's gradient."""
    (x_type,) = op.infer(types)
    taps, wide = pool_taps(op, x_type, types[0]), accumulator(x_type.dtype)
    share = _shares(op, x_type, types[0])

    def run(dy: Any) -> Any:
        dx = xp.zeros(x_type.shape, dtype=wide)
        part = xp.asarray(dy, dtype=wide) * share
        for _, read, written in taps:
            dx[(*ALL, *read)] += part[(*ALL, *written)]
        return xp.asarray(dx, dtype=x_type.dtype.numpy)

    return run


def _shares(op: MeanPooling, x: TensorType, y: TensorType) -> np.ndarray:
    """Return one over the number of elements of each window."""
    sizes = [np.asarray(counts, float) for counts in window_sizes(op, x, y)]
    counts = reduce(np.multiply.outer, sizes)
    return (1.0 / counts).astype(accumulator(x.dtype))
