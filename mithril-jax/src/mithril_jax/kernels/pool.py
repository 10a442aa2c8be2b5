"""Kernels of pooling; gradients are transposes of the local forward kernel.

Each takes an op as the core has it, or one of images whose channels come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import numpy as np
from jax import lax
from mithril.spi import KernelRun, OfImages, TensorType, Types, accumulator, ops

from mithril_jax.kernels.conv import read_images, transpose_linear
from mithril_jax.kernels.elementwise import lowest
from mithril_jax.kernels.table import kernel


@kernel(ops.MaxPool)
def max_pool(op: ops.MaxPool | OfImages, types: Types) -> KernelRun:
    """The largest element of each window."""
    return _reduce_window(op, types[0].rank, lax.max, lowest(types[0]))


@kernel(ops.MaxPoolGradient)
def max_pool_gradient(op: ops.MaxPoolGradient | OfImages, types: Types) -> KernelRun:
    """Each gradient handed to the first element that equals the maximum."""
    forward = _reduce_window(op, types[0].rank, lax.max, lowest(types[0]))

    def run(x: Any, y: Any, dy: Any) -> Any:
        _, back = jax.vjp(forward, x)
        return back(dy)[0]

    return run


@kernel(ops.AvgPool)
def avg_pool(op: ops.AvgPool | OfImages, types: Types) -> KernelRun:
    """The sum over each window times one over how many elements it has."""
    (result,) = op.infer(types)
    dtype, accumulate, share = (
        result.dtype.numpy,
        accumulator(result.dtype),
        _shares(op, types[0], result),
    )
    add = _reduce_window(op, result.rank, lax.add, np.zeros((), accumulate))
    return lambda x: lax.convert_element_type(
        add(lax.convert_element_type(x, accumulate)) * share, dtype
    )


@kernel(ops.AvgPoolGradient)
def avg_pool_gradient(op: ops.AvgPoolGradient | OfImages, types: Types) -> KernelRun:
    """The sums over windows, transposed."""
    (result,) = op.infer(types)
    share = _shares(op, result, types[0])
    add = _reduce_window(op, result.rank, lax.add, np.zeros((), accumulator(result.dtype)))
    return lambda dy: transpose_linear(
        add, result, lax.convert_element_type(dy, share.dtype) * share
    )


def _reduce_window(
    op: ops.Pooling | OfImages, rank: int, combine: KernelRun, start: Any
) -> KernelRun:
    """Return the function that combines the elements of every window."""
    of, order = read_images(op, rank)

    def spread(along: Sequence[Any], other: Any) -> tuple[Any, ...]:
        """Return what is there along the dimensions of an image, and in the others."""
        given = dict(zip(order, (other, other, *along), strict=True))
        return tuple(given[position] for position in range(rank))

    window, stride = spread(of.window, 1), spread(of.stride, 1)
    padding = spread(of.padding, (0, 0))
    return lambda x: lax.reduce_window(x, start, combine, window, stride, padding)


def _shares(op: ops.MeanPooling | OfImages, x: TensorType, y: TensorType) -> np.ndarray:
    of, order = read_images(op, x.rank)
    first = [t.with_shape(tuple(t.shape[i] for i in order)) for t in (x, y)]
    sizes = [np.asarray(counts, float) for counts in ops.window_sizes(of, *first)]
    shares = (1.0 / reduce(np.multiply.outer, sizes)).astype(accumulator(x.dtype))
    return shares[..., None] if isinstance(op, OfImages) else shares
