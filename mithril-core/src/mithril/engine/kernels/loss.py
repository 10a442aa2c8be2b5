"""Kernels of cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from mithril import ops
from mithril.engine.kernels.nn import wide_dtype
from mithril.engine.kernels.registry import Run, kernel
from mithril.errors import ShapeError
from mithril.types import TensorType

Types = Sequence[TensorType]


@kernel(ops.CrossEntropy)
def cross_entropy(op: ops.CrossEntropy, types: Types, xp: ModuleType) -> Run:
    """log sum exp minus the logit of the target."""
    wide, dtype, shape = wide_dtype(types), types[0].dtype.numpy, types[0].shape
    rows, classes = xp.arange(math.prod(shape[:-1])), shape[-1]

    def run(logits: Any, targets: Any) -> Any:
        _check_classes(targets, classes)
        logits = xp.asarray(logits, dtype=wide)
        top = xp.max(logits, axis=-1, keepdims=True)
        powers = logits - top
        xp.exp(powers, out=powers)
        total = xp.log(xp.sum(powers, axis=-1))
        total += top[..., 0]
        hit = logits.reshape(-1, classes)[rows, targets.reshape(-1)]
        return xp.asarray(total - hit.reshape(shape[:-1]), dtype=dtype), total

    return run


@kernel(ops.CrossEntropyGradient)
def cross_entropy_gradient(op: ops.CrossEntropyGradient, types: Types, xp: ModuleType) -> Run:
    """(softmax - one hot) times the cotangent."""
    wide, dtype, classes = wide_dtype(types), types[0].dtype.numpy, types[0].shape[-1]
    rows = xp.arange(types[1].size)

    def run(logits: Any, targets: Any, total: Any, g: Any) -> Any:
        slope = xp.asarray(logits, dtype=wide) - total[..., None]
        xp.exp(slope, out=slope)
        flat = slope.reshape(-1, classes)  # a copy where the logits were transposed
        flat[rows, targets.reshape(-1)] -= 1
        slope = flat.reshape(slope.shape)
        slope *= g[..., None]
        return xp.asarray(slope, dtype=dtype)

    return run


def _check_classes(targets: Any, classes: int) -> None:
    if targets.size and (targets.min() < 0 or targets.max() >= classes):
        raise ShapeError(
            f"cross_entropy has targets from {targets.min()} to {targets.max()} for {classes} "
            f"classes; targets must lie in [0, {classes})"
        )
