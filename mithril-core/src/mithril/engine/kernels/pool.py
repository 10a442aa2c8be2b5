"""Kernels of pooling: tap by tap, an element of the window for all windows at once."""

from __future__ import annotations

import math
from functools import reduce
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.conv import ALL, Index, taps_of
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import pool as ops
from mithril.types import DType, TensorType


@kernel(ops.MaxPool)
def max_pool(op: ops.MaxPool, types: Types, xp: ModuleType) -> Run:
    """The running maximum over the taps."""
    (result,) = op.infer(types)
    taps, dtype = pool_taps(op, types[0], result), result.dtype
    lowest = _lowest(dtype, xp)

    def run(x: Any) -> Any:
        y = xp.full(result.shape, lowest, dtype=dtype.numpy)
        for _, read, written in taps:
            here = (*ALL, *written)
            y[here] = xp.maximum(y[here], x[(*ALL, *read)])
        return y

    return run


@kernel(ops.MaxPoolGradient)
def max_pool_gradient(op: ops.MaxPoolGradient, types: Types, xp: ModuleType) -> Run:
    """Hand each gradient to the first tap that equals the maximum."""
    x_type, y_type = types[:2]
    taps, dtype = pool_taps(op, x_type, y_type), x_type.dtype.numpy

    def run(x: Any, y: Any, dy: Any) -> Any:
        dx = xp.zeros(x.shape, dtype=dtype)
        is_open = xp.ones(y.shape, dtype=bool)
        for _, read, written in taps:
            here, there = (*ALL, *written), (*ALL, *read)
            wins = xp.logical_and(is_open[here], x[there] == y[here])
            dx[there] += xp.where(wins, dy[here], xp.zeros((), dtype=dtype))
            is_open[here] = xp.logical_and(is_open[here], ~wins)
        return dx

    return run


@kernel(ops.AvgPool)
def avg_pool(op: ops.AvgPool, types: Types, xp: ModuleType) -> Run:
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


@kernel(ops.AvgPoolGradient)
def avg_pool_gradient(op: ops.AvgPoolGradient, types: Types, xp: ModuleType) -> Run:
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


def _shares(op: ops.MeanPooling, x: TensorType, y: TensorType) -> np.ndarray:
    """Return one over the number of elements of each window."""
    sizes = [np.asarray(counts, float) for counts in ops.window_sizes(op, x, y)]
    counts = reduce(np.multiply.outer, sizes)
    return (1.0 / counts).astype(accumulator(x.dtype))


def pool_taps(
    op: ops.Pooling, x: TensorType, y: TensorType
) -> list[tuple[tuple[int, ...], Index, Index]]:
    """Return the taps of a pooling op: element of the window, what it reads, what it goes into."""
    dense = (1,) * len(op.window)
    return list(taps_of(x.shape[2:], y.shape[2:], op.window, op.stride, op.padding, dense))


def _lowest(dtype: DType, xp: ModuleType) -> Any:
    """Return what every number of a dtype is at least."""
    if dtype.is_float:
        return xp.asarray(-math.inf, dtype=dtype.numpy)
    return xp.asarray(0 if "u" in dtype else -(2 ** (8 * dtype.itemsize - 1)), dtype=dtype.numpy)
