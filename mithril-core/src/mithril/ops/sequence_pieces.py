"""A sequence in equal pieces over devices: which queries a device has, and what they may see.

Under causality a device with an early part of a sequence would soon have nothing to see, so that
all wait for the last one. There the sequence is cut into twice as many pieces as devices, and
device i works on pieces i and 2 p - 1 - i, a low and a high one (the zig-zag order; Brandon et al.,
"Striped Attention", 2023, balance with stripes; Llama team, "The Llama 3 Herd of Models", 2024,
section 3.3.2). Where a device computes with its low or with its high queries is selected by data,
so that all devices run one program.

Tensors here have the sequence second. What a query may not see gets `FLOOR` added to its score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from math import prod
from operator import add
from typing import Any, ClassVar

from mithril.ir.op import Group, Op, Shard, Tensors, Types
from mithril.ir.rule import Rule
from mithril.ir.tensor import Tensor
from mithril.ops.arithmetic import maximum
from mithril.ops.choice import equal, less, logical_and, where
from mithril.ops.elementwise import cast
from mithril.ops.functions import exp, log
from mithril.ops.integer import remainder
from mithril.ops.shape import broadcast_to, concatenate, reshape, transpose
from mithril.ops.slicing import pad
from mithril.types import DType

ALL, LOW, HIGH, PICKED = "all", "low", "high", "picked"
"""Parts of a device's rows; `picked` are the low or the high ones, which data says."""
ARRANGE, RESTORE = "zig-zag order", "the order of the sequence"
FLOOR = -0.9e28
"""As good as unseen, and still above where attention calls a row unseen: blocks stay comparable."""
SEQUENCE_SECOND = (0, 2, 1, 3)
LINES = (0, 2, 1)
"""Between statistics [b, h, s] and [b, s, h]."""


class SplitSequence(Op):
    """What makes of an attention one whose queries, the factor `s`, may be split."""

    has_kernel: ClassVar[bool] = False
    merges_keys: ClassVar[bool] = False

    @property
    def exchanges(self) -> bool:
        """Whether devices exchange parts in it; otherwise each one has all that it needs."""
        return True

    def exchange(self, inputs: Tensors, group: Group, length: int) -> Tensors:
        """Return the local results.

        Args:
            inputs: local operands.
            group: the devices that share the sequence.
            length: rows of the local part.
        """
        raise NotImplementedError

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rule = super().rule(inputs, outputs)
        special = frozenset("s") if self.exchanges else frozenset[str]()
        return replace(rule, whole=rule.whole - {"s"}, special=special, separate=frozenset())

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        group, length = shard.group("s"), shard.size("s")
        if group is None or not length or not self.exchanges:
            return super().localize(inputs, shard)
        return self.exchange(inputs, group, length)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces as one device sees them.

    Args:
        group: the devices that share the sequence.
        length: rows of the local part, its padding included.
        zigzag: whether the pieces lie in zig-zag order.
    """

    group: Group
    length: int
    zigzag: bool

    @property
    def devices(self) -> int:
        """How many there are."""
        return len(self.group.parts)

    @property
    def pieces(self) -> int:
        """Into how many pieces the sequence is cut."""
        return self.devices * (2 if self.zigzag else 1)

    @property
    def rows(self) -> int:
        """Rows of a piece."""
        return -(-self.length // 2) if self.zigzag else self.length

    @property
    def shows_padding(self) -> bool:
        """Whether a query could see padding; behind all queries, causality hides it."""
        held = [n for part in self.group.parts for n in self._cut(part)]
        is_last = all(a == self.rows or b == 0 for a, b in pairwise(held))
        return min(held) < self.rows and not (self.zigzag and is_last)

    def _cut(self, part: int) -> tuple[int, ...]:
        low = min(part, self.rows)
        return (low, part - low) if self.zigzag else (part,)

    def part(self, x: Any, part: str, takes_low: Any, axis: int = 1) -> Any:
        """Return a part of rows; of `picked`, the low ones where `takes_low` is true."""
        if part == ALL:
            return x
        before = (slice(None),) * axis
        low, high = x[(*before, slice(self.rows))], x[(*before, slice(self.rows, None))]
        if part == PICKED:
            return where(takes_low, low, high)
        return low if part == LOW else high

    def spread(self, x: Any, part: str, takes_low: Any, empty: float) -> list[Any]:
        """Return for each piece of a device what a part of its rows says of it, or None."""
        if part == ALL:
            return [x[:, : self.rows], x[:, self.rows :]] if self.zigzag else [x]
        if part == PICKED:
            return [where(takes_low, x, empty), where(takes_low, empty, x)]
        return [x, None] if part == LOW else [None, x]

    # ---------------------------------------------------------------- the whole sequence

    def lay_out(self, x: Any, axis: int) -> Any:
        """Return a whole sequence with padding, so that it falls into equal pieces."""
        x, missing = self.group.stretch(x, axis), self._missing
        if missing:
            x = _pad(_cut(x, axis, self.devices), axis + 1, missing)
            x = _join(x, axis)
        return x

    def take_back(self, x: Any, axis: int) -> Any:
        """Return a whole sequence without the padding that `lay_out` adds."""
        if self._missing:
            x = _cut(x, axis, self.devices)
            x = _join(x[(slice(None),) * (axis + 1) + (slice(self.length),)], axis)
        return self.group.trim(x, axis)

    @property
    def _missing(self) -> int:
        """How many rows a part lacks to fall into equal pieces."""
        return 2 * self.rows - self.length if self.zigzag else 0

    # ---------------------------------------------------------------- zig-zag order

    def arrange(self, tensors: Sequence[Any], operands: Sequence[int], reason: str) -> list[Any]:
        """Return tensors with their rows in zig-zag order, each part padded to be even."""
        if not self.zigzag:
            return list(tensors)
        missing = self._missing
        even = [x if not missing else _pad(x, 1, missing) for x in tensors]

        def exchange(packed: Any) -> Any:
            first, second = packed[:, : self.rows], packed[:, self.rows :]
            first = self._send(first, self._pairs(0), reason, operands, ())
            second = self._send(second, self._pairs(1), reason, operands, ())
            return self._order_pieces(first, second)

        return _by_dtype(even, exchange)

    def restore(self, tensors: Sequence[Any], results: Sequence[int], reason: str) -> list[Any]:
        """Return tensors with their rows as the sequence is split."""
        if not self.zigzag:
            return list(tensors)

        def exchange(packed: Any) -> Any:
            whole = self._order_pieces(packed[:, : self.rows], packed[:, self.rows :])
            first, second = whole[:, : self.rows], whole[:, self.rows :]
            back = [tuple((b, a) for a, b in self._pairs(i)) for i in (0, 1)]
            first = self._send(first, back[0], reason, (), results)
            second = self._send(second, back[1], reason, (), results)
            return concatenate([first, second], 1)[:, : self.length]

        return _by_dtype(tensors, exchange)

    def _pairs(self, half: int) -> tuple[tuple[int, int], ...]:
        """Return who sends its first (0) or second (1) half to whom."""
        pieces = (2 * i + half for i in range(self.devices))
        return tuple((c // 2, min(c, self.pieces - 1 - c)) for c in pieces)

    def _order_pieces(self, first: Any, second: Any) -> Any:
        """Return two pieces one after another, swapped on every second device."""
        is_even = equal(remainder(self.group.index, 2), 0)
        low, high = where(is_even, first, second), where(is_even, second, first)
        return concatenate([low, high], 1)

    def _send(
        self,
        x: Any,
        pairs: tuple[tuple[int, int], ...],
        reason: str,
        operands: Sequence[int],
        results: Sequence[int],
    ) -> Any:
        if all(a == b for a, b in pairs):
            return x
        return self.group.permute(x, pairs, reason, operands, results)


class Sight:
    """What is added to scores: the mask, and `FLOOR` where keys are padding.

    Args:
        pieces: of the sequence.
        masks: none, or one mask [b, h, s, t], its rows as the sequence is split, its columns whole.
        operand: which operand of the op it is.
        like: any tensor of the program.
        dtype: of the scores.
    """

    def __init__(
        self, pieces: Pieces, masks: Sequence[Any], operand: int, like: Tensor, dtype: DType
    ) -> None:
        self._pieces, self._dtype = pieces, dtype
        self._mask = self._seen = None
        if pieces.shows_padding:
            whole = (1, 1, 1, sum(pieces.group.parts))
            yes = like.builder.constant(True, DType.bool_)
            self._seen = pieces.lay_out(broadcast_to(yes, whole), 3)
        for mask in masks:
            if mask.shape[2] > 1:
                moved = transpose(mask, SEQUENCE_SECOND)
                (moved,) = pieces.arrange([moved], (operand,), ARRANGE)
                mask = transpose(moved, SEQUENCE_SECOND)
            self._mask = pieces.lay_out(mask, 3) if mask.shape[3] > 1 else mask

    def of(self, queries: str, takes_low: Any, take: Callable[[Any], Any]) -> list[Any]:
        """Return what is added to the scores of some queries, as a list of one, or of none.

        Args:
            queries: which part of the rows.
            takes_low: which of them are picked.
            take: from all columns [.., 2 p pieces] to those of the keys that the queries meet.
        """
        seen = None if self._seen is None else take(self._seen)
        mask = self._mask
        if mask is not None and mask.shape[2] > 1:
            mask = self._pieces.part(mask, queries, takes_low, axis=2)
        if mask is not None and mask.shape[3] > 1:
            mask = take(mask)
        return add_to_scores(mask, seen, self._dtype)

    def hide(self, out: Any, lines: Any) -> tuple[Any, Any]:
        """Return output and statistic [b, s, h], zeros in rows that see nothing."""
        return (out, lines) if self._mask is None else hide_unseen(out, lines)


def add_to_scores(mask: Any, seen: Any, dtype: DType) -> list[Any]:
    """Return what is added to scores, as a list of one, or of none.

    Args:
        mask: booleans, true where a query sees a key, or what a user has added; None for none.
        seen: where a query sees a key besides; None for everywhere.
        dtype: of the scores.
    """
    if mask is not None and mask.dtype == DType.bool_:
        mask, seen = None, mask if seen is None else logical_and(seen, mask)
    if mask is not None:
        added = maximum(cast(mask, dtype), FLOOR)
        return [added if seen is None else where(seen, added, FLOOR)]
    return [] if seen is None else [where(seen, seen.builder.constant(0.0, dtype), FLOOR)]


def hide_unseen(out: Any, lines: Any) -> tuple[Any, Any]:
    """Return output and statistic [b, s, h] of masked scores, zeros in rows that see nothing."""
    unseen = less(lines, 0.5 * FLOOR)
    hidden = where(reshape(unseen, (*unseen.shape, 1)), 0.0, out)
    return hidden, where(unseen, 0.0, lines)


def merge(found: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return output and statistic [b, s, h] over several sets of keys together.

    Args:
        found: the same for each of them; the statistic of the first one is finite.
    """
    outs, lines = zip(*found, strict=True)
    top = reduce(maximum, lines)
    weights = [exp(line - top) for line in lines]
    total = reduce(add, weights)
    wide = [reshape(x, (*x.shape, 1)) for x in (*weights, total)]
    summed = reduce(add, (out * weight for out, weight in zip(outs, wide, strict=False)))
    return summed / wide[-1], top + log(total)


def _pad(x: Any, axis: int, missing: int) -> Any:
    return pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)])


def _cut(x: Any, axis: int, parts: int) -> Any:
    """Return x with a dimension in equal parts, that of the parts first."""
    return reshape(x, (*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :]))


def _join(x: Any, axis: int) -> Any:
    """Return x with two dimensions as one."""
    return reshape(x, (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))


def _by_dtype(tensors: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    """Apply a change along the sequence to all tensors of a dtype at once."""
    found: dict[int, Any] = {}
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        places = [i for i, x in enumerate(tensors) if x.dtype == dtype]
        if len(places) == 1:
            found[places[0]] = change(tensors[places[0]])
            continue
        rows = [reshape(x, (*x.shape[:2], prod(x.shape[2:]))) for x in (tensors[i] for i in places)]
        changed, start = change(concatenate(rows, 2)), 0
        for i, row in zip(places, rows, strict=True):
            part = changed[:, :, start : start + row.shape[2]]
            found[i] = reshape(part, (*changed.shape[:2], *tensors[i].shape[2:]))
            start += row.shape[2]
    return [found[i] for i in range(len(tensors))]


__all__: list[str] = []
