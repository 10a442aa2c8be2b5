"""Ring attention: the sequence may be split, and keys and values go round the devices.

Computed are ordinary attentions of blocks, so that every backend uses its own kernels. Each gives
an output and the logarithm of its sum of exponentials, by which outputs of several blocks are
merged in at least float32 (Liu et al., "Ring Attention with Blockwise Transformers for
Near-Infinite Context", 2023). The backward op recomputes the probabilities of a block from the
statistic of all blocks; the gradients of keys and values travel behind them, in at least float32,
and come home in the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Group, Op, Tensors, Types, register
from mithril.ir.operand import apply
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.elementwise import cast
from mithril.ops.reduce import accumulator
from mithril.ops.ring_order import Meeting, Ring, Round
from mithril.ops.sequence_pieces import ALL, ARRANGE, LINES, RESTORE, Sight, SplitSequence, merge
from mithril.ops.shape import concatenate, transpose

NEXT, HOME = "next block of the ring", "gradients of the next block of the ring"


@register
@dataclass(frozen=True)
class RingAttention(SplitSequence, Attention):
    """Attention of a sequence to itself that may be split along it; see `Attention`."""

    name: ClassVar[str] = "ring_attention"
    keys: ClassVar[str] = "s"

    def infer(self, inputs: Types) -> Types:
        found = super().infer(inputs)
        _check_lengths(inputs)
        return found

    def backward(self) -> Op:
        return RingAttentionGradient(self.causal, self.scale)

    def exchange(self, inputs: Tensors, group: Group, length: int) -> Tensors:
        return _forward(inputs, Ring(group, length, self.causal), self.scale)


@register
@dataclass(frozen=True)
class RingAttentionGradient(SplitSequence, AttentionGradient):
    """The cotangents of q, k, v of `RingAttention`; see `AttentionGradient`."""

    name: ClassVar[str] = "ring_attention_gradient"
    keys: ClassVar[str] = "s"

    def infer(self, inputs: Types) -> Types:
        found = super().infer(inputs)
        _check_lengths(inputs)
        return found

    def exchange(self, inputs: Tensors, group: Group, length: int) -> Tensors:
        return _backward(inputs, Ring(group, length, self.causal), self.scale)


def _check_lengths(inputs: Types) -> None:
    """Raise unless there are as many keys as queries.

    Raises:
        ShapeError: there are not.
    """
    s, t = inputs[0].shape[1], inputs[1].shape[1]
    if s != t:
        raise ShapeError(
            f"ring attention has {s} queries and {t} keys; a device passes on as many keys as "
            f"it has queries; give both the same sequence, or context_parallel='ulysses'"
        )


# ------------------------------------------------------------------ forward


def _forward(inputs: Tensors, ring: Ring, scale: float) -> Tensors:
    """Return the local output [b, s, h, e] and statistic [b, h, s]."""
    q, k, v, *masks = inputs
    dtype = q.dtype
    sight = Sight(ring, masks, 3, q, accumulator(dtype))
    q, k, v = ring.arrange([q, k, v], (0, 1, 2), ARRANGE)
    merged: list[Any] = []
    for at, block in ring.blocks(concatenate([k, v], 3), NEXT, (1, 2)):
        for meeting in at.meetings:
            pair = _compute_meeting(ring, at, meeting, (q, block, k.shape[3]), sight, scale)
            merged = _merge_into(merged, ring, at, meeting, pair)
    outs, lines = (concatenate(list(pieces), 1) for pieces in zip(*merged, strict=True))
    outs, lines = sight.hide(outs, lines)
    outs, lines = ring.restore([cast(outs, dtype), lines], (0, 1), RESTORE)
    return [outs, transpose(lines, LINES)]


def _compute_meeting(
    ring: Ring,
    at: Round,
    meeting: Meeting,
    operands: tuple[Any, Any, int],
    sight: Sight,
    scale: float,
) -> tuple[Any, Any]:
    """Return output and statistic [b, s, h] of a meeting, in at least float32."""
    q, block, size = operands
    q, block = (
        ring.part(x, part, at.from_before)
        for x, part in ((q, meeting.queries), (block, meeting.keys))
    )
    op, added = Attention(meeting.causal, scale), ring.see(sight, at, meeting)
    out, lines = apply(op, q, block[..., :size], block[..., size:], *added)
    return cast(out, lines.dtype), transpose(lines, LINES)


def _merge_into(
    merged: list[Any], ring: Ring, at: Round, meeting: Meeting, found: tuple[Any, Any]
) -> list[Any]:
    """Return output and statistic of each piece, with what a meeting found."""
    out, lines = found
    more = ring.spread(lines, meeting.queries, at.from_before, -math.inf)
    whole = meeting.queries == ALL
    outs = ring.spread(out, ALL, at.from_before, 0.0) if whole else [out] * len(more)
    if not merged:
        return list(zip(outs, more, strict=True))
    return [
        before if line is None else merge([before, (piece, line)])
        for before, piece, line in zip(merged, outs, more, strict=True)
    ]


# ------------------------------------------------------------------ backward


def _backward(inputs: Tensors, ring: Ring, scale: float) -> Tensors:
    """Return the local gradients of q, k and v."""
    q, k, v, out, lines, g, *masks = inputs
    dtype, sizes = q.dtype, (k.shape[3], v.shape[3])
    sight = Sight(ring, masks, 6, q, accumulator(dtype))
    rows = [q, k, v, out, g, transpose(lines, LINES)]
    q, k, v, *given = ring.arrange(rows, (0, 1, 2, 3, 5, 4), ARRANGE)
    own: Any = None
    travelling: Any = None
    queries: list[Any] = [0.0] * (2 if ring.zigzag else 1)
    for at, block in ring.blocks(concatenate([k, v], 3), NEXT, (1, 2)):
        keys: list[Any] = [0.0] * len(queries)
        for meeting in at.meetings:
            found = _slopes(ring, at, meeting, (q, block, given), sizes, sight, scale)
            queries = _add(queries, ring.spread(found[0], meeting.queries, at.from_before, 0.0))
            keys = _add(keys, ring.spread(found[1], meeting.keys, at.from_before, 0.0))
        step = concatenate(keys, 1) if ring.zigzag else keys[0]
        if own is None:
            own = step
        else:
            travelling = step if travelling is None else travelling + step
            travelling = ring.pass_on(travelling, HOME, (), (1, 2))
    total = own + travelling
    made = [concatenate(queries, 1), total[..., : sizes[0]], total[..., sizes[0] :]]
    return ring.restore([cast(x, dtype) for x in made], (0, 1, 2), RESTORE)


def _slopes(
    ring: Ring,
    at: Round,
    meeting: Meeting,
    operands: tuple[Any, Any, Sequence[Any]],
    sizes: tuple[int, int],
    sight: Sight,
    scale: float,
) -> tuple[Any, Any]:
    """Return what a meeting adds to the gradients of queries, and of keys and values together."""
    q, block, given = operands
    q, *given = (ring.part(x, meeting.queries, at.from_before) for x in (q, *given))
    block = ring.part(block, meeting.keys, at.from_before)
    out, g, lines = given
    op, added = AttentionGradient(meeting.causal, scale), ring.see(sight, at, meeting)
    k, v = block[..., : sizes[0]], block[..., sizes[0] :]
    found = apply(op, q, k, v, out, transpose(lines, LINES), g, *added)
    dq, dk, dv = (cast(x, lines.dtype) for x in found)
    return dq, concatenate([dk, dv], 3)


def _add(sums: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """Return sums with what is added to each; nothing has been to one that is a number."""
    return [
        a if b is None else b if isinstance(a, float) else a + b
        for a, b in zip(sums, more, strict=True)
    ]


__all__ = ["RingAttention", "RingAttentionGradient"]
