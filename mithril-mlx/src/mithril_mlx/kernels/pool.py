"""Kernels of pooling, one spatial dimension after another, wherever these stand in the layout."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import mlx.core as mx
import numpy as np
from mithril.spi import DType, KernelRun, TensorType, Types, ops

from mithril_mlx.kernels.bits import bits_of, mask
from mithril_mlx.kernels.elementwise import number
from mithril_mlx.kernels.empty import zero_without_elements
from mithril_mlx.kernels.precision import in_float32
from mithril_mlx.kernels.table import kernel
from mithril_mlx.kernels.taps import Window
from mithril_mlx.tensors import to_mlx


@kernel(ops.MaxPool)
@zero_without_elements
def max_pool(op: ops.MaxPool, types: Types) -> KernelRun:
    """The largest element of each window."""
    return max_pool_from(2, op, types)


def max_pool_from(start: int, op: ops.MaxPool, types: Types) -> KernelRun:
    """The same for operands whose spatial dimensions start at `start`."""
    windows, lowest = _windows(op, types[0], op.infer(types)[0], start), _lowest(types[0].dtype)

    def run(x: mx.array) -> mx.array:
        for window in windows:
            x = reduce(mx.maximum, window.taps(x, lowest))
        return x

    return run


@kernel(ops.MaxPoolGradient)
@zero_without_elements
def max_pool_gradient(op: ops.MaxPoolGradient, types: Types) -> KernelRun:
    """Each gradient handed to the first element that equals the maximum."""
    return max_pool_gradient_from(2, op, types)


def max_pool_gradient_from(start: int, op: ops.MaxPoolGradient, types: Types) -> KernelRun:
    """The same for operands whose spatial dimensions start at `start`.

    The last dimension is pooled first: the first row that has the maximum gets the gradient, and
    in it the first column that has it.
    """
    x, y, _ = types
    windows, lowest, bits = _windows(op, x, y, start), _lowest(x.dtype), bits_of(x)

    def run(x: mx.array, y: mx.array, dy: mx.array) -> mx.array:
        steps, largest = [], []
        for window in windows:
            steps.append(window.taps(x, lowest))
            largest.append(x := reduce(mx.maximum, steps[-1]))
        largest[-1] = y
        for window, taps, top in reversed(list(zip(windows, steps, largest, strict=True))):
            dy = window.spread(_to_first(taps, top, dy, bits))
        return dy

    return run


def _to_first(
    taps: list[mx.array], largest: mx.array, dy: mx.array, bits: mx.Dtype
) -> list[mx.array]:
    """Return for each tap the gradients of the places where it is the first that is largest."""
    parts, left = [], mx.view(dy, bits)
    for tap in taps:
        part = mx.bitwise_and(left, mask(mx.equal(tap, largest), bits))
        left = mx.bitwise_xor(left, part)  # nothing where it has been handed out
        parts.append(mx.view(part, dy.dtype))
    return parts


@kernel(ops.AvgPool)
@zero_without_elements
@in_float32
def avg_pool(op: ops.AvgPool, types: Types) -> KernelRun:
    """The sum over each window times one over how many elements it has."""
    return avg_pool_from(2, op, types)


def avg_pool_from(start: int, op: ops.AvgPool, types: Types) -> KernelRun:
    """The same for operands whose spatial dimensions start at `start`."""
    (x,), (y,) = types, op.infer(types)
    windows, share, zero = _windows(op, x, y, start), _shares(op, x, y, start), number(0, x.dtype)

    def run(x: mx.array) -> mx.array:
        for window in windows:
            x = reduce(mx.add, window.taps(x, zero))
        return mx.multiply(x, share)

    return run


@kernel(ops.AvgPoolGradient)
@zero_without_elements
@in_float32
def avg_pool_gradient(op: ops.AvgPoolGradient, types: Types) -> KernelRun:
    """Each element of a window gets its share of the gradient."""
    return avg_pool_gradient_from(2, op, types)


def avg_pool_gradient_from(start: int, op: ops.AvgPoolGradient, types: Types) -> KernelRun:
    """The same for operands whose spatial dimensions start at `start`."""
    (x,), (y,) = op.infer(types), types
    windows, share = _windows(op, x, y, start), _shares(op, x, y, start)

    def run(dy: mx.array) -> mx.array:
        dy = dy * share
        for window in reversed(windows):
            dy = window.spread([dy] * window.length)
        return dy

    return run


def _windows(op: ops.Pooling, x: TensorType, y: TensorType, start: int) -> list[Window]:
    """Return the windows of an op along spatial dimensions, the last one first."""
    along = zip(x.shape[2:], y.shape[2:], op.window, op.stride, op.padding, strict=True)
    windows = [
        Window(axis, size, count, length, step, before)
        for axis, (size, count, length, step, (before, _)) in enumerate(along, start)
    ]
    return windows[::-1]


def _shares(op: ops.MeanPooling, x: TensorType, y: TensorType, start: int) -> Any:
    """Return one over the number of elements of each window: one number if all have as many."""
    counts = reduce(np.multiply.outer, map(np.asarray, ops.window_sizes(op, x, y)))
    if counts.min() == counts.max():
        return 1.0 / float(counts.flat[0])
    shape = (*counts.shape, *(1,) * (2 - start))
    return to_mlx((1.0 / counts).astype(x.dtype.numpy).reshape(shape))


def _lowest(dtype: DType) -> mx.array:
    """Return what every number of a dtype is at least."""
    if dtype.is_float:
        return number(-math.inf, dtype)
    lowest = 0 if dtype.startswith("u") else -(2 ** (8 * dtype.itemsize - 1))
    return number(lowest, dtype)
