"""Cross-entropy of logits against target classes, fused, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import GraphError, ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply, apply_one
from mithril.ir.rule import Rule
from mithril.ops.choice import stop_gradient
from mithril.ops.elementwise import cast
from mithril.ops.functions import exp, log
from mithril.ops.index import one_hot
from mithril.ops.nn import dim_names, only_first, require_float, widened
from mithril.ops.reduce import accumulator, max, sum
from mithril.ops.shape import reshape
from mithril.types import TensorType


@register
@dataclass(frozen=True)
class CrossEntropy(Op):
    """The negative log-probability of a target class; operands (logits, targets).

    Results (loss, logarithm of the sum of exponentials), the second in at least float32; the class
    dimension, the last, is whole.
    """

    name: ClassVar[str] = "cross_entropy"

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

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g = only_first("cross_entropy", cotangents)
        logits, targets = inputs
        return [apply_one(CrossEntropyGradient(), logits, targets, outputs[1], g), None]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[1].rank))
        text = f"{rows} v, {rows} -> {rows}, {rows}"
        return Rule.parse(text, inputs, outputs, expandable=["v"])

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(12 * inputs[0].size, inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        logits, targets = widened(inputs)
        top = stop_gradient(max(logits, -1, keepdims=True))
        total = log(sum(exp(logits - top), -1)) + reshape(top, targets.shape)
        hit = one_hot(targets, logits.shape[-1], logits.dtype)
        return [cast(total - sum(logits * hit, -1), inputs[0].dtype), total]


@register
@dataclass(frozen=True)
class CrossEntropyGradient(Op):
    """The cotangent of the logits; operands (logits, targets, log_sum_exp, cotangent)."""

    name: ClassVar[str] = "cross_entropy_gradient"

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        raise GraphError("second gradient of cross_entropy is not defined; write it with softmax")

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = " ".join(dim_names(inputs[1].rank))
        text = f"{rows} v, {rows}, {rows}, {rows} -> {rows} v"
        return Rule.parse(text, inputs, outputs, expandable=["v"], linear=((3,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(11 * inputs[0].size, 2 * inputs[0].nbytes)

    def expand(self, inputs: Tensors) -> Tensors:
        logits, targets, total, g = widened(inputs)
        column = (*targets.shape, 1)
        hit = one_hot(targets, logits.shape[-1], logits.dtype)
        dx = (exp(logits - reshape(total, column)) - hit) * reshape(g, column)
        return [cast(dx, inputs[0].dtype)]


# ------------------------------------------------------------------ functions over operands


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Return the negative log-probability of the target class of each row.

    Args:
        logits: [..., classes], of a float dtype.
        targets: [...], integers in [0, classes).
    """
    return apply(CrossEntropy(), logits, targets)[0]


__all__ = ["CrossEntropy", "CrossEntropyGradient", "cross_entropy"]
