"""Kernels of cross-entropy: the logit of the target is picked, not summed out of a mask.

A target that is no class gives NaN: a program that runs lazily cannot refuse it. Nothing outside
the logits is read.
"""

from __future__ import annotations

import math

import mlx.core as mx
from mithril.spi import KernelRun, Types, ops

from mithril_mlx.kernels.empty import zero_without_elements
from mithril_mlx.kernels.exponential import Change, exponential, log_sum_exp
from mithril_mlx.kernels.precision import in_float32
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype


@kernel(ops.CrossEntropy)
@zero_without_elements
@in_float32
def cross_entropy(op: ops.CrossEntropy, types: Types) -> KernelRun:
    """log sum exp minus the logit of the target."""
    reduce, (counted, count) = log_sum_exp(-1, types[0]), _counting(types)
    last, nan = mx.array(types[0].shape[-1] - 1, counted), mx.array(math.nan, _dtype(types))

    def run(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
        total, targets = reduce(logits), mx.expand_dims(count(targets), -1)
        near = mx.minimum(targets, last)
        loss = total - mx.take_along_axis(logits, near, axis=-1)
        loss = mx.where(mx.equal(near, targets), loss, nan)
        return mx.squeeze(loss, -1), mx.squeeze(total, -1)

    return run


@kernel(ops.CrossEntropyGradient)
@zero_without_elements
@in_float32
def cross_entropy_gradient(op: ops.CrossEntropyGradient, types: Types) -> KernelRun:
    """(softmax - one hot) times the cotangent."""
    exp, (counted, count) = exponential(types[0]), _counting(types)
    every, dtype = mx.arange(types[0].shape[-1], dtype=counted), _dtype(types)

    def run(logits: mx.array, targets: mx.array, total: mx.array, g: mx.array) -> mx.array:
        likely = exp(logits - mx.expand_dims(total, -1))
        is_target = mx.equal(every, mx.expand_dims(count(targets), -1))
        return (likely - is_target.astype(dtype)) * mx.expand_dims(g, -1)

    return run


def _counting(types: Types) -> tuple[mx.Dtype, Change]:
    """Return an unsigned dtype, and what makes targets of it; negative ones become large."""
    size = types[1].dtype.itemsize
    counted = mx.uint64 if size == 8 else mx.uint32
    return counted, lambda x: mx.view(x, counted) if size >= 4 else x.astype(counted)


def _dtype(types: Types) -> mx.Dtype:
    return mlx_dtype(types[0].dtype)
