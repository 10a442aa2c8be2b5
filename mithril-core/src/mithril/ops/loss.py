"""Cross-entropy of logits against target classes, fused, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply, apply_one
from mithril.ir.rule import Rule
from mithril.ops.choice import equal, stop_gradient, where
from mithril.ops.elementwise import cast
from mithril.ops.expansion import gradient_by_expansion, gradient_of_fused
from mithril.ops.functions import exp, log
from mithril.ops.index import iota
from mithril.ops.nn import dim_names, require_float, widen
from mithril.ops.reduce import accumulator, max, sum
from mithril.ops.shape import reshape
from mithril.types import DType, TensorType


@register
@dataclass(frozen=True)
class CrossEntropy(Op):
    """The negative log-probability of a target class; operands (logits, targets).

    Results (loss, logarithm of the sum of exponentials), the second in at least float32.
    """

    name: ClassVar[str] = "cross_entropy"
    indices: ClassVar[tuple[int, ...]] = (1,)

    def infer(self, inputs: Types) -> Types:
        logits, targets = inputs
        require_float(logits, "cross_entropy")
        if not targets.dtype.is_integer or logits.shape[:-1] != targets.shape or not logits.rank:
            raise ShapeError(
                f"cross_entropy of logits {logits} has targets {targets}; give one integer class "
                f"per row of logits"
            )
        if not logits.shape[-1]:
            raise ShapeError(f"cross_entropy of logits {logits} has no classes; give at least one")
        rows = logits.with_shape(targets.shape)
        return [rows, TensorType(targets.shape, accumulator(logits.dtype))]

    def check_index(self, inputs: Types, index: Any) -> None:
        check_classes(index, inputs[0].shape[-1])

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        def differentiate(g: Any) -> Cotangents:
            return [apply_one(CrossEntropyGradient(), *inputs, outputs[1], g), None]

        return gradient_of_fused(self, inputs, cotangents, differentiate)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[1].rank))
        text = f"{rows} v, {rows} -> {rows}, {rows}"
        return Rule.parse(text, inputs, outputs, expandable=["v"])

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(12 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        logits, targets = widen(inputs)
        top = stop_gradient(max(logits, -1, keepdims=True))
        total = log(sum(exp(logits - top), -1)) + reshape(top, targets.shape)
        # Classes elsewhere add zero, so the picked logits may stay partial sums up to a mean.
        picked = sum(where(_is_target(logits, targets), logits, 0.0), -1)
        return [cast(total - picked, inputs[0].dtype), total]


@register
@dataclass(frozen=True)
class CrossEntropyGradient(Op):
    """The cotangent of the logits; operands (logits, targets, log_sum_exp, cotangent)."""

    name: ClassVar[str] = "cross_entropy_gradient"
    indices: ClassVar[tuple[int, ...]] = (1,)

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[1].rank))
        text = f"{rows} v, {rows}, {rows}, {rows} -> {rows} v"
        return Rule.parse(text, inputs, outputs, expandable=["v"], linear=((3,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(11 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        logits, targets, total, g = widen(inputs)
        column = (*targets.shape, 1)
        likely = exp(logits - reshape(total, column))
        slope = where(_is_target(logits, targets), likely - 1.0, likely)
        return [cast(slope * reshape(g, column), inputs[0].dtype)]


def check_classes(targets: Any, classes: int) -> None:
    """Refuse targets that are no class.

    Args:
        targets: integers, a NumPy array.
        classes: how many classes there are.

    Raises:
        ShapeError: a target lies outside 0…classes-1.
    """
    # Read without their sign, negative numbers are the largest.
    if targets.size and targets.view(f"u{targets.itemsize}").max() >= classes:
        raise ShapeError(
            f"cross_entropy has targets from {targets.min()} to {targets.max()} for {classes} "
            f"classes; targets must lie in [0, {classes}); check the targets, or give more classes"
        )


def _is_target(logits: Any, targets: Any) -> Any:
    """Return where the class of a column is the row's target, of the shape of the logits."""
    small = targets.dtype.itemsize < 4  # classes may be too many to count in the targets' dtype
    targets = cast(targets, DType.int32) if small else targets
    classes = iota(logits, logits.shape[-1:], dtype=targets.dtype)
    return equal(reshape(targets, (*targets.shape, 1)), classes)


# ------------------------------------------------------------------ functions over operands


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Return the negative log-probability of the target class of each row.

    Over a split class dimension two numbers per row are exchanged, and what the shards picked is
    added up, as in Megatron-LM (Shoeybi et al., 2019).

    Args:
        logits: [..., classes], of a float dtype; 16-bit floats are computed in float32.
        targets: [...], integers in [0, classes).

    Returns:
        [...], of the dtype of the logits, in nats.

    Raises:
        ShapeError: the shapes do not fit, or a target is no class.

    >>> cross_entropy(backend.array([[0.0, 0.0]]), backend.array([1])).numpy().tolist()
    [0.6931471824645996]
    """
    return apply(CrossEntropy(), logits, targets)[0]


__all__ = ["CrossEntropy", "CrossEntropyGradient", "cross_entropy"]
