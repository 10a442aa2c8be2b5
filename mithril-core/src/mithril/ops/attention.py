"""Scaled dot-product attention and its gradient.

Layout is [batch, sequence, heads, head_dim]. There may be fewer heads of keys than of queries: each
then serves a group of neighbouring query heads (Ainslie et al., "GQA", 2023). Batch, groups and the
heads within a group may be split, and keys of which there are more than queries; other sequences
are whole. `CONTEXTS` of `mithril.ops.context` has the same attention for such that are split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import apply
from mithril.ir.rule import Rule
from mithril.ops.choice import greater_equal, stop_gradient, where
from mithril.ops.elementwise import cast
from mithril.ops.equations import einsum
from mithril.ops.expansion import gradient_by_expansion, gradient_of_fused
from mithril.ops.functions import exp, log, tanh
from mithril.ops.index import iota
from mithril.ops.reduce import accumulator, max, sum
from mithril.ops.shape import reshape, transpose
from mithril.ops.split_keys import attend_split_keys, hide_keys
from mithril.types import DType, TensorType

UNSEEN = -1e28
"""A row whose scores are all below this sees nothing: its output and its statistic are 0."""


def count_scores(length: int, other: int, *, causal: bool) -> int:
    """Return how many pairs of positions see each other: what kernels of attention compute.

    Args:
        length: how many queries there are.
        other: how many keys; no fewer than queries where it is causal.
        causal: whether a query sees no later key, the ends of both sequences aligned.

    >>> count_scores(4, 4, causal=True), count_scores(4, 4, causal=False)
    (10, 16)
    >>> count_scores(1, 4, causal=True)
    4
    """
    hidden = length * (length - 1) // 2 if causal else 0
    return length * other - hidden


@register
@dataclass(frozen=True)
class Attention(Op):
    """softmax(scale q k^T + mask) v per head (Vaswani et al., 2017); operands (q, k, v[, mask]).

    Results: the output [b, s, h, e] and, in at least float32, the logarithm of the sum of
    exponentials [b, h, s], from which the backward op recomputes the probabilities (Dao et al.,
    "FlashAttention", 2022); both are 0 in rows that see nothing. q is [b, s, h, d],
    k [b, t, h, d] and v [b, t, h, e]; k and v have h heads, or a divisor of that. The mask is
    [b, h, s, t], each size there or 1, of bools (true is seen) or of floats, added to the scores.
    """

    name: ClassVar[str] = "attention"
    keys: ClassVar[str] = "t"
    """The factor of the sequence of keys in the rule; `s` is that of queries."""
    merges_keys: ClassVar[bool] = True
    """Whether more keys than queries may be split; see `mithril.ops.split_keys`."""
    causal: bool
    scale: float

    def infer(self, inputs: Types) -> Types:
        q, k, v, *masks = inputs
        fits = (
            q.rank == k.rank == v.rank == 4
            and q.shape[0] == k.shape[0]
            and q.shape[3] == k.shape[3]
            and k.shape[:3] == v.shape[:3]
            and k.shape[2] > 0
            and q.shape[2] % k.shape[2] == 0
            and q.dtype == k.dtype == v.dtype
            and q.dtype.is_float
        )
        if not fits:
            raise ShapeError(
                f"attention has q {q}, k {k}, v {v}; they need shapes [batch, sequence, heads, "
                f"head_dim] with equal batch, heads of q a multiple of those of k and v, and one "
                f"float dtype"
            )
        (b, s, h, d), t = q.shape, k.shape[1]
        if not d:
            raise ShapeError(
                f"attention has q {q}, whose head_dim is 0, so that every score is 0; give at "
                f"least 1"
            )
        if t < (s if self.causal else 1):
            raise ShapeError(
                f"attention has {s} queries and {t} keys{' and is causal' if self.causal else ''}; "
                f"every query must see at least one key; pass more keys"
            )
        for mask in masks:
            check_mask(mask, (b, h, s, t))
        return [q.with_shape((b, s, h, v.shape[3])), TensorType((b, h, s), accumulator(q.dtype))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        q, k, v, *masks = inputs

        def differentiate(g: Any) -> Cotangents:
            found = apply(self.backward(), q, k, v, *outputs, g, *masks)
            return [*found, *self._through_mask(inputs, g)]

        return gradient_of_fused(self, inputs, cotangents, differentiate)

    def backward(self) -> Op:
        """Return the gradient op, for the cotangent of the output."""
        return AttentionGradient(self.causal, self.scale)

    def _through_mask(self, inputs: Tensors, g: Any) -> Cotangents:
        """Return the cotangent of a float mask; dead nodes unless somebody asks for it."""
        if len(inputs) > 3 and inputs[3].dtype.is_float:
            return gradient_by_expansion(self, inputs, [g, None])[3:]
        return [None] * (len(inputs) - 3)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        query, key = head_factors(inputs)
        mask = "".join(f", {mask_dims(t, query)}" for t in inputs[3:])
        heads = f"b s {query} d, b {self.keys} {key} d, b {self.keys} {key} e"
        text = f"{heads}{mask} -> b s {query} e, b {query} s"
        rule = Rule.parse(text, inputs, outputs, whole="stde", sizes=head_sizes(inputs))
        if _merges(self, inputs):
            keys = frozenset(self.keys)
            rule = replace(rule, whole=rule.whole - keys, special=keys, completed=keys)
        # Causal attention aligns the ends of both sequences, so that the last queries stay so.
        separate = frozenset("s")
        return replace(rule, separate=separate, aligned=separate if self.causal else frozenset())

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        b, s, h, d = inputs[0].shape
        t, e = inputs[2].shape[1], inputs[2].shape[3]
        scores = count_scores(s, t, causal=self.causal)
        return Cost(2 * b * h * scores * (d + e + 6), super().cost(inputs, outputs).bytes)

    def plain(self, outputs: Types) -> Op:
        return Attention(self.causal, self.scale)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        group = shard.group(self.keys) if self.merges_keys else None
        if group is None:
            return shard.apply(self.plain(shard.outputs), *inputs)
        return attend_split_keys(replace(self, causal=False), inputs, shard, group, self.causal)

    def expand(self, inputs: Tensors) -> Tensors:
        out, total = attend(inputs, causal=self.causal, scale=self.scale)
        return [cast(out, inputs[0].dtype), total]


@register
@dataclass(frozen=True)
class AttentionGradient(Op):
    """The cotangents of q, k, v; operands (q, k, v, out, log_sum_exp, cotangent[, mask])."""

    name: ClassVar[str] = "attention_gradient"
    is_product: ClassVar[bool] = True
    keys: ClassVar[str] = Attention.keys
    merges_keys: ClassVar[bool] = True
    causal: bool
    scale: float

    def infer(self, inputs: Types) -> Types:
        return list(inputs[:3])

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        query, key = head_factors(inputs)
        mask = "".join(f", {mask_dims(t, query)}" for t in inputs[6:])
        heads = f"b s {query} d, b {self.keys} {key} d, b {self.keys} {key} e"
        text = f"{heads}, b s {query} e, b {query} s, b s {query} e{mask} -> {heads}"
        sizes = head_sizes(inputs)
        whole = "sde" if _merges(self, inputs) else "stde"
        return Rule.parse(text, inputs, outputs, whole=whole, linear=((5,),), sizes=sizes)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        b, s, h, d = inputs[0].shape
        t, e = inputs[2].shape[1], inputs[2].shape[3]
        scores = count_scores(s, t, causal=self.causal)
        return Cost(2 * b * h * scores * (3 * d + 2 * e + 6), super().cost(inputs, outputs).bytes)

    def plain(self, outputs: Types) -> Op:
        return AttentionGradient(self.causal, self.scale)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        if not self.merges_keys or shard.offset(self.keys) is None:
            return shard.apply(self.plain(shard.outputs), *inputs)
        added = hide_keys(inputs, 6, shard, self.causal)
        return shard.apply(replace(self, causal=False), *inputs[:6], *added)

    def expand(self, inputs: Tensors) -> Tensors:
        wide = (cast(tensor, accumulator(tensor.dtype)) for tensor in inputs[:6])
        q, k, v, out, total, g = wide
        shape = q.shape
        q, at, key = _group(q, k)
        g, out = (reshape(x, (*q.shape[:-1], x.shape[-1])) for x in (g, out))
        scores = _scores(q, k, inputs[6:], (self.causal, self.scale))
        weights = exp(scores - reshape(total, (*scores.shape[:-1], 1)))
        along = sum(g * out, -1, keepdims=True)  # [b, s, heads, 1], heads of one or two dimensions
        along = transpose(along, (0, *range(2, along.ndim - 1), 1, along.ndim - 1))
        slope = einsum(f"bs{at}e,bt{key}e->b{at}st", g, v) - along
        slope = weights * slope * self.scale
        found = [
            reshape(einsum(f"b{at}st,bt{key}d->bs{at}d", slope, k), shape),
            einsum(f"b{at}st,bs{at}d->bt{key}d", slope, q),
            einsum(f"b{at}st,bs{at}e->bt{key}e", weights, g),
        ]
        return [cast(tensor, inputs[0].dtype) for tensor in found]


# ------------------------------------------------------------------ shared pieces


def attend(
    inputs: Tensors, *, causal: bool, scale: float, soft_cap: float | None = None
) -> tuple[Any, Any]:
    """Return output and statistic of attention, written out in smaller ops, in at least float32.

    Args:
        inputs: q, k, v, and a mask if there is one, as for `Attention`.
        causal: whether what comes later is not seen.
        scale: factor on the scores.
        soft_cap: scores go over smoothly into no more than this, before they are masked.
    """
    q, k, v = (cast(tensor, accumulator(tensor.dtype)) for tensor in inputs[:3])
    (b, s, h, _), e = q.shape, v.shape[3]
    q, at, key = _group(q, k)
    scores = _scores(q, k, inputs[3:], (causal, scale), soft_cap)
    top = max(scores, -1, keepdims=True)
    top = stop_gradient(where(top < UNSEEN, 0.0, top) if inputs[3:] else top)
    weights = exp(scores - top)
    total = sum(weights, -1, keepdims=True)
    if inputs[3:]:
        total = where(total > 0.0, total, 1.0)
    out = einsum(f"b{at}st,bt{key}e->bs{at}e", weights / total, v)
    return reshape(out, (b, s, h, e)), reshape(log(total) + top, (b, h, s))


def check_mask(mask: TensorType, scores: tuple[int, ...]) -> None:
    """Raise a ShapeError unless a mask fits scores [b, h, s, t]."""
    fits = mask.rank == 4 and all(
        size in (1, full) for size, full in zip(mask.shape, scores, strict=True)
    )
    if not fits or not (mask.dtype.is_float or mask.dtype == DType.bool_):
        raise ShapeError(
            f"attention has scores {list(scores)} and a mask {mask}; give booleans (true is seen) "
            f"or floats (added to the scores), each size that of the scores or 1"
        )


def _merges(op: Attention | AttentionGradient, inputs: Types) -> bool:
    """Return whether keys may be split: there are more of them than queries."""
    return op.merges_keys and inputs[0].shape[1] < inputs[1].shape[1]


def head_factors(inputs: Types) -> tuple[str, str]:
    """Return the factors of the heads of q and of k: no bracket where one name is enough."""
    heads, groups = inputs[0].shape[2], inputs[1].shape[2]
    if heads == groups:
        return "h", "h"
    return ("r", "_") if groups == 1 else ("(g r)", "g")


def mask_dims(mask: TensorType, heads: str) -> str:
    """Return the dimensions of a mask in a rule."""
    names = zip(("b", heads, "s", "t"), mask.shape, strict=True)
    return " ".join(name if size != 1 else "_" for name, size in names)


def head_sizes(inputs: Types) -> dict[str, int]:
    """Return the sizes a rule cannot read off lone dimensions."""
    heads, groups = inputs[0].shape[2], inputs[1].shape[2]
    return {} if heads == groups else {"g": groups, "r": heads // groups}


def _group(q: Any, k: Any) -> tuple[Any, str, str]:
    """Return q as [b, s, g, r, d] where k has fewer heads, and letters for the heads of both."""
    (b, s, h, d), groups = q.shape, k.shape[2]
    if h == groups:
        return q, "h", "h"
    return reshape(q, (b, s, groups, h // groups, d)), "gr", "g"


def _scores(
    q: Any, k: Any, masks: Tensors, how: tuple[bool, float], soft_cap: float | None = None
) -> Any:
    """Return the masked scores, [b, h, s, t] or [b, g, r, s, t]; -inf where nothing is seen."""
    causal, scale = how
    at, key = ("gr", "g") if q.ndim == 5 else ("h", "h")
    scores = einsum(f"bs{at}d,bt{key}d->b{at}st", q, k) * scale
    if soft_cap is not None:
        scores = tanh(scores * (1.0 / soft_cap)) * soft_cap
    s, t = scores.shape[-2:]
    for mask in masks:
        mask = _for_groups(mask, scores.shape)
        if mask.dtype == DType.bool_:
            scores = where(mask, scores, -math.inf)
        else:
            scores = scores + cast(mask, scores.dtype)
    if not causal:
        return scores
    seen = greater_equal(iota(q, (s, t), 0) + (t - s), iota(q, (s, t), 1))
    return where(seen, scores, -math.inf)


def _for_groups(mask: Any, shape: tuple[int, ...]) -> Any:
    if len(shape) == 4:
        return mask
    b, h, s, t = mask.shape
    return reshape(mask, (b, *(shape[1:3] if h > 1 else (1, 1)), s, t))


__all__ = ["Attention", "AttentionGradient"]
