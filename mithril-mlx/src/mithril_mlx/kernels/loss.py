"""Kernels of cross-entropy: the logit of the target is picked, not summed out of a mask.

A target that is no class gives NaN: a program that runs lazily cannot refuse it. Nothing outside
the logits is read.
"""

from __future__ import annotations

import mlx.core as mx
from mithril import ops
from mithril.engine.kernels.registry import Run

from mithril_mlx.kernels.exponential import exponential, log_sum_exp
from mithril_mlx.kernels.precision import in_float32
from mithril_mlx.kernels.registry import Types, kernel
from mithril_mlx.tensors import mlx_dtype


@kernel(ops.CrossEntropy)
@in_float32
def cross_entropy(op: ops.CrossEntropy, types: Types) -> Run:
    """log sum exp minus the logit of the target."""
    classes, counted, reduce = types[0].shape[-1], _unsigned(types), log_sum_exp(-1, types[0])

    def run(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
        total = mx.squeeze(reduce(logits), -1)
        targets = targets.astype(counted)  # negative numbers become the largest
        column = mx.expand_dims(mx.minimum(targets, classes - 1), -1)
        hit = mx.squeeze(mx.take_along_axis(logits, column, axis=-1), -1)
        return mx.where(targets < classes, total - hit, mx.nan), total

    return run


@kernel(ops.CrossEntropyGradient)
@in_float32
def cross_entropy_gradient(op: ops.CrossEntropyGradient, types: Types) -> Run:
    """(softmax - one hot) times the cotangent."""
    logits, counted, exp = types[0], _unsigned(types), exponential(types[0])
    every, dtype = mx.arange(logits.shape[-1], dtype=counted), mlx_dtype(logits.dtype)

    def run(logits: mx.array, targets: mx.array, total: mx.array, g: mx.array) -> mx.array:
        likely = exp(logits - mx.expand_dims(total, -1))
        is_target = every == mx.expand_dims(targets.astype(counted), -1)
        return (likely - is_target.astype(dtype)) * mx.expand_dims(g, -1)

    return run


def _unsigned(types: Types) -> mx.Dtype:
    return mx.uint64 if types[1].dtype.itemsize == 8 else mx.uint32
