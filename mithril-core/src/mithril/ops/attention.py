"""Scaled dot-product attention and its gradient.

Layout is [batch, sequence, heads, head_dim]. Batch and heads may be split; the sequences are whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import GraphError, ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply
from mithril.ir.rule import Rule
from mithril.ops.choice import greater_equal, stop_gradient, where
from mithril.ops.elementwise import cast
from mithril.ops.functions import exp, log
from mithril.ops.index import Iota
from mithril.ops.linalg import einsum
from mithril.ops.reduce import accumulator, max, sum
from mithril.ops.shape import reshape, transpose
from mithril.types import DType, TensorType

MASKED = -1e30
"""Score of a position that may not be seen: finite, so that differences stay numbers."""


@register
@dataclass(frozen=True)
class Attention(Op):
    """softmax(scale q k^T) v per head (Vaswani et al., 2017); operands (q, k, v).

    Results: the output [b, s, h, e] and, in at least float32, the logarithm of the sum of
    exponentials [b, h, s], from which the backward op recomputes the probabilities (Dao et al.,
    "FlashAttention", 2022).
    """

    name: ClassVar[str] = "attention"
    causal: bool
    scale: float

    def infer(self, inputs: Types) -> Types:
        q, k, v = inputs
        fits = (
            q.rank == k.rank == v.rank == 4
            and q.shape[0::2] == k.shape[0::2]
            and q.shape[3] == k.shape[3]
            and k.shape[:3] == v.shape[:3]
            and q.dtype == k.dtype == v.dtype
            and q.dtype.is_float
        )
        if not fits:
            raise ShapeError(
                f"attention has q {q}, k {k}, v {v}; they need shapes [batch, sequence, heads, "
                f"head_dim] with equal batch and heads, and one float dtype"
            )
        (b, s, h, _), t = q.shape, k.shape[1]
        if t < (s if self.causal else 1):
            raise ShapeError(
                f"attention has {s} queries and {t} keys{' and is causal' if self.causal else ''}; "
                f"every query must see at least one key; pass more keys"
            )
        return [q.with_shape((b, s, h, v.shape[3])), TensorType((b, h, s), accumulator(q.dtype))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        if cotangents[1] is not None or cotangents[0] is None:
            raise GraphError(
                "gradient through log_sum_exp of attention is not defined; use softmax"
            )
        op = AttentionGradient(self.causal, self.scale)
        return apply(op, *inputs, *outputs, cotangents[0])

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        text = "b s h d, b t h d, b t h e -> b s h e, b h s"
        return Rule.parse(text, inputs, outputs, whole="stde")

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        b, s, h, d = inputs[0].shape
        t, e = inputs[2].shape[1], inputs[2].shape[3]
        moved = math.fsum(x.nbytes for x in (*inputs, *outputs))
        return Cost(2 * b * h * s * t * (d + e + 6), int(moved))

    def expand(self, inputs: Tensors) -> Tensors:
        q, k, v = (cast(tensor, accumulator(tensor.dtype)) for tensor in inputs)
        scores = _scores(q, k, self.causal, self.scale)
        top = stop_gradient(max(scores, -1, keepdims=True))
        weights = exp(scores - top)
        total = sum(weights, -1, keepdims=True)
        out = einsum("bhst,bthe->bshe", weights / total, v)
        return [cast(out, inputs[0].dtype), reshape(log(total) + top, total.shape[:-1])]


@register
@dataclass(frozen=True)
class AttentionGradient(Op):
    """The cotangents of q, k and v; operands (q, k, v, out, log_sum_exp, cotangent)."""

    name: ClassVar[str] = "attention_gradient"
    causal: bool
    scale: float

    def infer(self, inputs: Types) -> Types:
        return list(inputs[:3])

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        raise GraphError("second gradient of attention is not defined; write it with softmax")

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        text = "b s h d, b t h d, b t h e, b s h e, b h s, b s h e -> b s h d, b t h d, b t h e"
        return Rule.parse(text, inputs, outputs, whole="stde", linear=((5,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        b, s, h, d = inputs[0].shape
        t, e = inputs[2].shape[1], inputs[2].shape[3]
        moved = math.fsum(x.nbytes for x in (*inputs, *outputs))
        return Cost(2 * b * h * s * t * (3 * d + 2 * e + 6), int(moved))

    def expand(self, inputs: Tensors) -> Tensors:
        wide = (cast(tensor, accumulator(tensor.dtype)) for tensor in inputs)
        q, k, v, out, total, g = wide
        scores = _scores(q, k, self.causal, self.scale)
        weights = exp(scores - reshape(total, (*total.shape, 1)))
        along = transpose(sum(g * out, -1), (0, 2, 1))
        slope = einsum("bshe,bthe->bhst", g, v) - reshape(along, (*along.shape, 1))
        slope = weights * slope * self.scale
        found = [
            einsum("bhst,bthd->bshd", slope, k),
            einsum("bhst,bshd->bthd", slope, q),
            einsum("bhst,bshe->bthe", weights, g),
        ]
        return [cast(tensor, inputs[0].dtype) for tensor in found]


def attention(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> Any:
    """Return scaled dot-product attention per head.

    Args:
        q: [batch, sequence, heads, head_dim].
        k: [batch, other sequence, heads, head_dim].
        v: [batch, other sequence, heads, value_dim].
        causal: position i sees positions up to i only, the ends of both sequences aligned.
        scale: factor on the scores, 1 / sqrt(head_dim) by default.

    Returns:
        [batch, sequence, heads, value_dim].

    Raises:
        ShapeError: the shapes do not fit.
    """
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return apply(Attention(bool(causal), factor), q, k, v)[0]


def _scores(q: Any, k: Any, causal: bool, scale: float) -> Any:
    scores = einsum("bshd,bthd->bhst", q, k) * scale
    if not causal:
        return scores
    s, t = scores.shape[-2:]
    (row,) = scores.builder.apply(Iota((s, t), 0, DType.int32))
    (column,) = scores.builder.apply(Iota((s, t), 1, DType.int32))
    return where(greater_equal(row + (t - s), column), scores, MASKED)


__all__ = ["Attention", "AttentionGradient", "attention"]
