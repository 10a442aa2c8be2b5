"""Ops that compute the same as others, and can be split along other dimensions.

Attention of whole sequences is split by samples and heads. Of a sequence that is split, keys and
values go round the devices, or are gathered; a search may have either where samples and heads are
fewer than devices. Or it is exchanged for heads and back, which splits nothing further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from mithril.errors import ShapeError
from mithril.ir.op import Op, Types
from mithril.ops.all_gather_attention import AllGatherAttention, AllGatherAttentionGradient
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.ring import RingAttention, RingAttentionGradient
from mithril.ops.ulysses import UlyssesAttention, UlyssesAttentionGradient

ALTERNATIVES: Mapping[type[Op], tuple[type[Op], ...]] = {
    Attention: (RingAttention, AllGatherAttention, UlyssesAttention),
    AttentionGradient: (
        RingAttentionGradient, AllGatherAttentionGradient, UlyssesAttentionGradient,
    ),
}  # fmt: skip
"""For a class of ops others with the same fields, those of one way at the same place."""
WAYS = max(map(len, ALTERNATIVES.values()))
"""How many other ways there are."""
SPLITS = 2
"""How many of them, the first ones, can be split where the op cannot."""


def makes_masked_scores(op: Op) -> bool:
    """Return whether an op makes scores for nothing, which its other ways leave out.

    Those are causal attention's of what comes later, where no kernel leaves them out by itself.
    """
    return isinstance(op, Attention | AttentionGradient) and op.causal


def find_alternative(op: Op, inputs: Types, way: int) -> Op | None:
    """Return the op that computes the same in another way; None if there is none.

    Args:
        op: of a node.
        inputs: what it takes.
        way: the number of the other way, below `WAYS`.

    >>> from mithril.types import DType, TensorType
    >>> x = TensorType((1, 8, 2, 4), DType.float32)
    >>> find_alternative(Attention(True, 0.5), [x, x, x], 0).name
    'ring_attention'
    """
    kinds = ALTERNATIVES.get(type(op), ())
    if way >= len(kinds):
        return None
    found = kinds[way](**{field.name: getattr(op, field.name) for field in fields(op)})
    try:
        found.infer(inputs)
    except ShapeError:  # a ring has as many keys as queries
        return None
    return found


__all__ = ["ALTERNATIVES", "SPLITS", "WAYS", "find_alternative", "makes_masked_scores"]
