"""Kernels of cross-entropy, some rows at a time."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mithril import ops
from mithril.engine.kernels.blocks import in_row_blocks
from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops.loss import check_classes


@kernel(ops.CrossEntropy)
def cross_entropy(op: ops.CrossEntropy, types: Types, xp: ModuleType) -> Run:
    """log sum exp minus the logit of the target."""
    wide, dtype, (*lead, classes) = (
        accumulator(types[0].dtype),
        types[0].dtype.numpy,
        types[0].shape,
    )

    def step(logits: Any, targets: Any) -> Any:
        logits = xp.asarray(logits, dtype=wide)
        top = xp.max(logits, axis=-1, keepdims=True)
        powers = logits - top
        xp.exp(powers, out=powers)
        total = xp.log(xp.sum(powers, axis=-1))
        total += top[..., 0]
        hit = logits[xp.arange(logits.shape[0]), targets]
        return xp.asarray(total - hit, dtype=dtype), total

    run = in_row_blocks(step, tuple(lead), classes, ("rr", "rr"), xp)

    def check_and_run(logits: Any, targets: Any) -> Any:
        check_classes(targets, classes)
        return run(logits, targets)

    return check_and_run


@kernel(ops.CrossEntropyGradient)
def cross_entropy_gradient(op: ops.CrossEntropyGradient, types: Types, xp: ModuleType) -> Run:
    """(softmax - one hot) times the cotangent."""
    wide, dtype, (*lead, classes) = (
        accumulator(types[0].dtype),
        types[0].dtype.numpy,
        types[0].shape,
    )

    def step(logits: Any, targets: Any, total: Any, g: Any, out: Any = None) -> Any:
        slope = xp.subtract(xp.asarray(logits, dtype=wide), total[..., None], out=out)
        xp.exp(slope, out=slope)
        slope[xp.arange(slope.shape[0]), targets] -= 1
        slope *= g[..., None]
        return (xp.asarray(slope, dtype=dtype),)

    run = in_row_blocks(step, tuple(lead), classes, ("rrrr", "r"), xp, writes=wide == dtype)
    return lambda *operands: run(*operands)[0]
