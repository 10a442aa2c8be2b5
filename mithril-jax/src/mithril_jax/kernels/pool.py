"""Kernels of pooling; gradients are transposes of the local forward kernel."""

from __future__ import annotations

from functools import reduce
from typing import Any

import jax
import numpy as np
from jax import lax
from mithril.spi import KernelRun, TensorType, Types, accumulator, ops

from mithril_jax.kernels.conv import transpose_linear
from mithril_jax.kernels.elementwise import lowest
from mithril_jax.kernels.table import kernel


@kernel(ops.MaxPool)
def max_pool(op: ops.MaxPool, types: Types) -> KernelRun:
    """The largest element of each window."""
    return _reduce_window(op, lax.max, lowest(types[0]))


@kernel(ops.MaxPoolGradient)
def max_pool_gradient(op: ops.MaxPoolGradient, types: Types) -> KernelRun:
    """Each gradient handed to the first element that equals the maximum."""
    forward = _reduce_window(op, lax.max, lowest(types[0]))

    def run(x: Any, y: Any, dy: Any) -> Any:
        _, back = jax.vjp(forward, x)
        return back(dy)[0]

    return run


@kernel(ops.AvgPool)
def avg_pool(op: ops.AvgPool, types: Types) -> KernelRun:
    """The sum over each window times one over how many elements it has."""
    (result,) = op.infer(types)
    dtype, accumulate, share = (
        result.dtype.numpy,
        accumulator(result.dtype),
        _shares(op, types[0], result),
    )
    add = _reduce_window(op, lax.add, np.zeros((), accumulate))
    return lambda x: lax.convert_element_type(
        add(lax.convert_element_type(x, accumulate)) * share, dtype
    )


@kernel(ops.AvgPoolGradient)
def avg_pool_gradient(op: ops.AvgPoolGradient, types: Types) -> KernelRun:
    """The sums over windows, transposed."""
    (result,) = op.infer(types)
    share = _shares(op, result, types[0])
    add = _reduce_window(op, lax.add, np.zeros((), accumulator(result.dtype)))
    return lambda dy: transpose_linear(
        add, result, lax.convert_element_type(dy, share.dtype) * share
    )


def _reduce_window(op: ops.Pooling, combine: KernelRun, start: Any) -> KernelRun:
    """Return the function that combines the elements of every window."""
    window, stride = (1, 1, *op.window), (1, 1, *op.stride)
    padding = ((0, 0), (0, 0), *op.padding)
    return lambda x: lax.reduce_window(x, start, combine, window, stride, padding)


def _shares(op: ops.MeanPooling, x: TensorType, y: TensorType) -> np.ndarray:
    sizes = [np.asarray(counts, float) for counts in ops.window_sizes(op, x, y)]
    return (1.0 / reduce(np.multiply.outer, sizes)).astype(accumulator(x.dtype))
