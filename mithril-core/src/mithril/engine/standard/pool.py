"""Shared kernels of pooling, tap by tap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel
from mithril.engine.standard.windows import Windows
from mithril.ops.pool import MeanPooling, Pooling, window_sizes
from mithril.types import DType, TensorType


def _windows_of_pool(op: Pooling, x: TensorType, y: TensorType) -> Windows:
    dense = (1,) * len(op.window)
    return Windows(x.shape[2:], y.shape[2:], op.window, op.stride, op.padding, dense)


@kernel(ops.MaxPool)
def max_pool(op: ops.MaxPool, types: Types, xp: ArrayNamespace) -> Run:
    """The running maximum over the taps; padding counts as the lowest number there is."""
    (result,) = op.infer(types)
    windows = _windows_of_pool(op, types[0], result)
    lowest = xp.asarray(_lowest(result.dtype), dtype=dtype_in(xp, result.dtype))
    inside = _find_inside(windows, xp)

    def run(x: Any) -> Any:
        padded = windows.pad(x, xp)
        padded = xp.where(inside, padded, lowest)
        return reduce(xp.maximum, (windows.read(padded, at) for at in windows))

    return run


@kernel(ops.MaxPoolGradient)
def max_pool_gradient(op: ops.MaxPoolGradient, types: Types, xp: ArrayNamespace) -> Run:
    """Hand each gradient to the first tap that equals the maximum."""
    x_type, y_type = types[:2]
    windows = _windows_of_pool(op, x_type, y_type)
    inside = _find_inside(windows, xp)
    dtype = dtype_in(xp, x_type.dtype)

    def run(x: Any, y: Any, dy: Any) -> Any:
        padded = windows.pad(x, xp)
        total = xp.zeros((*x_type.shape[:2], *windows.padded), dtype=dtype)
        is_open = xp.equal(xp.zeros_like(y), xp.zeros_like(y))
        for at in windows:
            wins = is_open & windows.read(inside, at) & (windows.read(padded, at) == y)
            total = total + windows.write(xp.where(wins, dy, xp.zeros_like(dy)), at, xp)
            is_open = is_open & ~wins
        return windows.trim(total)

    return run


@kernel(ops.AvgPool)
def avg_pool(op: ops.AvgPool, types: Types, xp: ArrayNamespace) -> Run:
    """The sum over the taps, divided by how many there are."""
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    windows, share = _windows_of_pool(op, types[0], result), _share(op, types[0], result, xp)

    def run(x: Any) -> Any:
        padded = windows.pad(xp.astype(x, wide, copy=False), xp)
        total = reduce(xp.add, (windows.read(padded, at) for at in windows))
        return xp.astype(total * share, dtype, copy=False)

    return run


@kernel(ops.AvgPoolGradient)
def avg_pool_gradient(op: ops.AvgPoolGradient, types: Types, xp: ArrayNamespace) -> Run:
    """Hand every tap its share of the result's gradient."""
    (x_type,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (x_type.dtype, widen(x_type.dtype)))
    windows, share = _windows_of_pool(op, x_type, types[0]), _share(op, x_type, types[0], xp)

    def run(dy: Any) -> Any:
        part = xp.astype(dy, wide, copy=False) * share
        total = xp.zeros((*x_type.shape[:2], *windows.padded), dtype=wide)
        for at in windows:
            total = total + windows.write(part, at, xp)
        return xp.astype(windows.trim(total), dtype, copy=False)

    return run


def _share(op: MeanPooling, x: TensorType, y: TensorType, xp: ArrayNamespace) -> Any:
    """Return one over the number of elements of each window."""
    counts = [np.asarray(sizes, float) for sizes in window_sizes(op, x, y)]
    shares: Sequence[Any] = (1.0 / reduce(np.multiply.outer, counts)).tolist()
    return xp.asarray(shares, dtype=dtype_in(xp, widen(x.dtype)))


def _find_inside(windows: Windows, xp: ArrayNamespace) -> Any:
    """Return which elements of the padded input are of the input, [1, 1, *padded]."""
    at = [
        [before <= i < before + n for i in range(padded)]
        for before, n, padded in zip(windows.before, windows.size, windows.padded, strict=True)
    ]
    inside = reduce(np.logical_and.outer, [np.asarray(row, bool) for row in at])
    whole = xp.asarray(inside.tolist(), dtype=dtype_in(xp, DType.bool_))
    return xp.reshape(whole, (1, 1, *windows.padded))


def _lowest(dtype: DType) -> float | int:
    """Return what every number of a dtype is at least."""
    if dtype.is_float:
        return -math.inf
    return 0 if "u" in dtype else -(2 ** (8 * dtype.itemsize - 1))
