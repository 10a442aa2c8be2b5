"""All-gather attention: queries stay split along the sequence, keys and values are gathered.

What is gathered is the part of heads that a device computes, which is small where many heads of
queries share those of keys; the gradients of keys and values are partial sums, which are scattered
as they are summed (Llama team, "The Llama 3 Herd of Models", 2024, section 3.3.2). All of that
follows from the rule.

Causal queries lie in zig-zag order (`mithril.ops.sequence_pieces`). The high queries of a device
see all low pieces and their own one, its low queries their own one: two attentions. Of the rest,
device i of p has i pieces for its low queries and p - 1 - i for its high ones: always p - 1. They
are met in runs of half of what is left, each by the queries that still lack as many, so that all
devices run one program of ceil(log2 p) further attentions and none computes what causality hides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Group, Op, Tensors, Types, register
from mithril.ir.operand import apply
from mithril.ir.rule import Rule
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.choice import greater_equal, where
from mithril.ops.dynamic_slicing import dynamic_slice, dynamic_update_slice
from mithril.ops.elementwise import cast
from mithril.ops.reduce import accumulator
from mithril.ops.sequence_pieces import (
    ARRANGE,
    HIGH,
    LINES,
    LOW,
    PICKED,
    RESTORE,
    Pieces,
    Sight,
    SplitSequence,
    merge,
)
from mithril.ops.shape import broadcast_to, concatenate, transpose


class _GatheredKeys(SplitSequence):
    """Keys and values are whole; under causality queries are exchanged, to balance the work."""

    causal: bool

    @property
    def exchanges(self) -> bool:
        return self.causal

    def infer(self, inputs: Types) -> Types:
        found = super().infer(inputs)
        s, t = inputs[0].shape[1], inputs[1].shape[1]
        if self.causal and s != t:
            raise ShapeError(
                f"causal attention that gathers keys has {s} queries and {t} keys; it balances one "
                f"sequence over devices; give both the same one, or context_parallel='ulysses'"
            )
        return found

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return replace(super().rule(inputs, outputs), gathered=frozenset("t"))


@register
@dataclass(frozen=True)
class AllGatherAttention(_GatheredKeys, Attention):
    """Attention whose queries may be split along their sequence; see `Attention`."""

    name: ClassVar[str] = "all_gather_attention"

    def backward(self) -> Op:
        return AllGatherAttentionGradient(self.causal, self.scale)

    def exchange(self, inputs: Tensors, group: Group, length: int) -> Tensors:
        return _forward(inputs, Pieces(group, length, zigzag=True), self.scale)


@register
@dataclass(frozen=True)
class AllGatherAttentionGradient(_GatheredKeys, AttentionGradient):
    """The cotangents of q, k, v of `AllGatherAttention`; see `AttentionGradient`."""

    name: ClassVar[str] = "all_gather_attention_gradient"

    def exchange(self, inputs: Tensors, group: Group, length: int) -> Tensors:
        return _backward(inputs, Pieces(group, length, zigzag=True), self.scale)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Queries of a device that meet a run of keys.

    Args:
        queries: which part of its rows.
        takes_low: which of them are picked.
        causal: whether the last keys of the run are those of the queries themselves.
        before: how many rows of the sequence come first.
        start: the row at which the others start.
        count: how many others.
    """

    queries: str
    takes_low: Any
    causal: bool
    before: int
    start: Any
    count: int

    def take(self, x: Any, axis: int) -> Any:
        """Return the run of a whole sequence."""
        others = dynamic_slice(x, self.start, self.count, axis=axis)
        first = x[(slice(None),) * axis + (slice(self.before),)]
        return concatenate([first, others], axis) if self.before else others


def _list_meetings(pieces: Pieces) -> Iterator[_Meeting]:
    """Yield the meetings of a device, those of queries with themselves first."""
    index: Any = pieces.group.index
    half, rows = pieces.devices * pieces.rows, pieces.rows
    yield _Meeting(LOW, None, True, 0, index * rows, rows)
    yield _Meeting(HIGH, None, True, half, (pieces.pieces - 1 - index) * rows, rows)
    lacks, left = index, pieces.devices - 1  # pieces that low queries lack, and all queries
    low: Any
    high: Any
    low, high = index * 0, index * 0 + half
    while left:
        count = -(-left // 2)
        takes_low = greater_equal(lacks, count)
        yield _Meeting(PICKED, takes_low, False, 0, where(takes_low, low, high), count * rows)
        low = where(takes_low, low + count * rows, low)
        high = where(takes_low, high, high + count * rows)
        lacks, left = where(takes_low, lacks - count, lacks), left - count


def _forward(inputs: Tensors, pieces: Pieces, scale: float) -> Tensors:
    """Return the local output [b, s, h, e] and statistic [b, h, s]."""
    q, k, v, *masks = inputs
    dtype = q.dtype
    sight = Sight(pieces, masks, 3, q, accumulator(dtype))
    (q,) = pieces.arrange([q], (0,), ARRANGE)
    k, v = (pieces.lay_out(x, 1) for x in (k, v))
    found: list[list[tuple[Any, Any]]] = [[], []]
    for meeting in _list_meetings(pieces):
        out, lines = _attend(pieces, meeting, (q, k, v), sight, scale)
        spread = pieces.spread(lines, meeting.queries, meeting.takes_low, -math.inf)
        for there, line in zip(found, spread, strict=True):
            if line is not None:
                there.append((out, line))
    merged = [merge(there) for there in found]
    outs, lines = (concatenate(list(both), 1) for both in zip(*merged, strict=True))
    outs, lines = sight.hide(outs, lines)
    outs, lines = pieces.restore([cast(outs, dtype), lines], (0, 1), RESTORE)
    return [outs, transpose(lines, LINES)]


def _attend(
    pieces: Pieces, meeting: _Meeting, operands: Sequence[Any], sight: Sight, scale: float
) -> tuple[Any, Any]:
    """Return output and statistic [b, s, h] of a meeting, in at least float32."""
    q, k, v = operands
    q = pieces.part(q, meeting.queries, meeting.takes_low)
    k, v = (meeting.take(x, 1) for x in (k, v))
    op, added = Attention(meeting.causal, scale), _see(sight, meeting)
    out, lines = apply(op, q, k, v, *added)
    return cast(out, lines.dtype), transpose(lines, LINES)


def _backward(inputs: Tensors, pieces: Pieces, scale: float) -> Tensors:
    """Return the local gradients of q, and what this device adds to those of k and v."""
    q, k, v, out, lines, g, *masks = inputs
    dtype, wide = q.dtype, accumulator(q.dtype)
    sight = Sight(pieces, masks, 6, q, wide)
    q, *given = pieces.arrange([q, out, g, transpose(lines, LINES)], (0, 3, 5, 4), ARRANGE)
    k, v = (pieces.lay_out(x, 1) for x in (k, v))
    queries: list[list[Any]] = [[], []]
    keys = [_KeyGradient(x) for x in (k, v)]
    for meeting in _list_meetings(pieces):
        slope, *others = _slopes(pieces, meeting, (q, k, v, *given), sight, scale)
        spread = pieces.spread(cast(slope, wide), meeting.queries, meeting.takes_low, 0.0)
        for there, part in zip(queries, spread, strict=True):
            there += [] if part is None else [part]
        for total, other in zip(keys, others, strict=True):
            total.add(meeting, other)
    made = concatenate([sum(parts[1:], parts[0]) for parts in queries], 1)
    (made,) = pieces.restore([cast(made, dtype)], (0,), RESTORE)
    return [made, *(pieces.take_back(total.sum(wide), 1) for total in keys)]


def _slopes(
    pieces: Pieces, meeting: _Meeting, operands: Sequence[Any], sight: Sight, scale: float
) -> Sequence[Any]:
    """Return what a meeting adds to the gradients of queries, keys and values."""
    q, k, v, out, g, lines = operands
    q, out, g, lines = (
        pieces.part(x, meeting.queries, meeting.takes_low) for x in (q, out, g, lines)
    )
    k, v = (meeting.take(x, 1) for x in (k, v))
    op, added = AttentionGradient(meeting.causal, scale), _see(sight, meeting)
    return apply(op, q, k, v, out, transpose(lines, LINES), g, *added)


def _see(sight: Sight, meeting: _Meeting) -> list[Any]:
    return sight.of(meeting.queries, meeting.takes_low, lambda x: meeting.take(x, 3))


class _KeyGradient:
    """The gradient of keys or values of the whole sequence, as meetings are computed.

    No two of them have the same keys, but for the low half, which high queries meet as a whole.
    """

    def __init__(self, like: Any) -> None:
        zero: Any = like.builder.constant(0, like.dtype)
        self._apart: Any = broadcast_to(zero, like.shape)
        self._low: Any = None

    def add(self, meeting: _Meeting, slope: Any) -> None:
        """Add what a meeting finds."""
        if meeting.before:
            self._low, slope = slope[:, : meeting.before], slope[:, meeting.before :]
        self._apart = dynamic_update_slice(self._apart, slope, meeting.start, axis=1)

    def sum(self, wide: Any) -> Any:
        """Return the sum of all, added up in a wide dtype."""
        half, dtype = self._low.shape[1], self._low.dtype
        low = cast(self._apart[:, :half], wide) + cast(self._low, wide)
        return concatenate([cast(low, dtype), self._apart[:, half:]], 1)


__all__ = ["AllGatherAttention", "AllGatherAttentionGradient"]
