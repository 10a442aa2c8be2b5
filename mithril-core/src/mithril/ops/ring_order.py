"""How blocks of keys and values go round a ring of devices, and which queries they meet there.

In round r a device holds the block of the device r places before it; it computes with that block
and sends it on (Liu et al., "Ring Attention with Blockwise Transformers", 2023). Without causality
a block is a device's part of the sequence. Under causality the first devices would soon have
nothing to see, so that all wait for the last: there the sequence is cut into twice as many pieces
as devices, and device i works on pieces i and 2 p - 1 - i, a low and a high one (the zig-zag order;
Brandon et al., "Striped Attention", 2023, balance with stripes). From another device every device
then sees exactly half: its high queries see the low keys, and either the low queries see the low
keys (of a device before it) or the high ones the high keys (of one behind it). Which of the two is
selected by data, so that all devices run one program.

Tensors here have the sequence second. What a query may not see gets `FLOOR` added to its score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from mithril.ir.op import Group
from mithril.ir.tensor import Tensor
from mithril.ops.arithmetic import maximum
from mithril.ops.choice import equal, greater_equal, where
from mithril.ops.collective import TakeShard
from mithril.ops.elementwise import cast
from mithril.ops.integer import remainder
from mithril.ops.shape import broadcast_to, concatenate, reshape, transpose
from mithril.ops.slicing import pad
from mithril.types import DType

ALL, LOW, HIGH, PICKED = "all", "low", "high", "picked"
"""Parts of a device's rows; `picked` are the low against a block from before, else the high."""
FLOOR = -0.9e28
"""As good as unseen, and still above where attention calls a row unseen: blocks stay comparable."""
SEQUENCE_SECOND = (0, 2, 1, 3)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Queries of this device that meet keys of a block."""

    queries: str
    keys: str
    causal: bool


@dataclass(frozen=True, slots=True)
class Round:
    """A round: who owns the block that is here, and whether that device comes before this one."""

    owner: Any
    from_before: Any
    meetings: tuple[Meeting, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """The ring as one device sees it.

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

    # ---------------------------------------------------------------- rounds

    def rounds(self) -> Iterator[Round]:
        """Yield the rounds, that of the own block first."""
        index: Any = self.group.index
        away = (Meeting(HIGH, LOW, False), Meeting(PICKED, PICKED, False))
        for number in range(self.devices):
            is_before = greater_equal(index, number)
            owner = where(is_before, index - number, index + (self.devices - number))
            here = self.zigzag and number > 0
            yield Round(owner, is_before, away if here else (Meeting(ALL, ALL, self.zigzag),))

    def blocks(self, own: Any, reason: str, operands: Sequence[int]) -> Iterator[tuple[Round, Any]]:
        """Yield each round with its block; a block is sent on before it is computed with."""
        block = own
        for number, at in enumerate(self.rounds(), start=1):
            here = block
            if number < self.devices:
                block = self.pass_on(here, reason, operands, ())
            yield at, here

    def pass_on(self, x: Any, reason: str, operands: Sequence[int], results: Sequence[int]) -> Any:
        """Return what the device before this one has of x."""
        pairs = tuple((i, (i + 1) % self.devices) for i in range(self.devices))
        return self.group.permute(x, pairs, reason, operands, results)

    def part(self, x: Any, part: str, at: Round, axis: int = 1) -> Any:
        """Return a part of rows."""
        if part == ALL:
            return x
        before = (slice(None),) * axis
        low, high = x[(*before, slice(self.rows))], x[(*before, slice(self.rows, None))]
        if part == PICKED:
            return where(at.from_before, low, high)
        return low if part == LOW else high

    def spread(self, x: Any, part: str, at: Round, empty: float) -> list[Any]:
        """Return for each piece of a device what a part of its rows says of it, or None."""
        if part == ALL:
            return [x[:, : self.rows], x[:, self.rows :]] if self.zigzag else [x]
        if part == PICKED:
            return [where(at.from_before, x, empty), where(at.from_before, empty, x)]
        return [x, None] if part == LOW else [None, x]

    # ---------------------------------------------------------------- zig-zag order

    def arrange(self, tensors: Sequence[Any], operands: Sequence[int], reason: str) -> list[Any]:
        """Return tensors with their rows in the order of the ring, each part padded to be even."""
        if not self.zigzag:
            return list(tensors)
        missing = 2 * self.rows - self.length
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
        ring: the ring.
        masks: none, or one mask [b, h, s, t], its rows as the sequence is split, its columns whole.
        operand: which operand of the op it is.
        like: any tensor of the program.
        dtype: of the scores.
    """

    def __init__(
        self, ring: Ring, masks: Sequence[Any], operand: int, like: Tensor, dtype: DType
    ) -> None:
        self._ring, self._dtype = ring, dtype
        self._mask = self._seen = None
        if ring.shows_padding:
            whole = (1, 1, 1, sum(ring.group.parts))
            yes = like.builder.constant(True, DType.bool_)
            self._seen = self._columns(broadcast_to(yes, whole))
        for mask in masks:
            if mask.shape[2] > 1:
                moved = transpose(mask, SEQUENCE_SECOND)
                (moved,) = ring.arrange([moved], (operand,), "zig-zag order")
                mask = transpose(moved, SEQUENCE_SECOND)
            self._mask = self._columns(mask) if mask.shape[3] > 1 else mask

    @property
    def may_hide_all(self) -> bool:
        """Whether a row may see nothing at all."""
        return self._mask is not None

    def of(self, at: Round, meeting: Meeting) -> list[Any]:
        """Return what is added to the scores of a meeting, as a list of one, or of none."""
        numbers = self._numbers(at, meeting.keys)
        seen = None if self._seen is None else _take(self._seen, numbers, self._ring.pieces)
        if self._mask is None:
            return [] if seen is None else [where(seen, self._zero(seen), FLOOR)]
        mask = self._mask
        if mask.shape[2] > 1:
            mask = self._ring.part(mask, meeting.queries, at, axis=2)
        if mask.shape[3] > 1:
            mask = _take(mask, numbers, self._ring.pieces)
        if mask.dtype == DType.bool_:
            mask = where(mask, self._zero(mask), FLOOR)
        else:
            mask = maximum(cast(mask, self._dtype), FLOOR)
        return [mask if seen is None else where(seen, mask, FLOOR)]

    def _zero(self, like: Any) -> Any:
        return like.builder.constant(0.0, self._dtype)

    def _numbers(self, at: Round, keys: str) -> list[Any]:
        """Return the numbers of the pieces of a block."""
        if not self._ring.zigzag:
            return [at.owner]
        low, high = at.owner, self._ring.pieces - 1 - at.owner
        if keys == PICKED:
            return [where(at.from_before, low, high)]
        return {ALL: [low, high], LOW: [low], HIGH: [high]}[keys]

    def _columns(self, x: Any) -> Any:
        """Return x with padding in its last dimension, so that it falls into equal pieces."""
        ring = self._ring
        x = ring.group.stretch(x, 3)
        missing = (2 * ring.rows if ring.zigzag else ring.rows) - ring.length
        if missing:
            apart = reshape(x, (*x.shape[:3], ring.devices, ring.length))
            x = reshape(_pad(apart, 4, missing), (*x.shape[:3], ring.pieces * ring.rows))
        return x


def _take(x: Any, numbers: Sequence[Any], pieces: int) -> Any:
    """Return some pieces of the last dimension, side by side."""
    found = [x.builder.apply(TakeShard(3, pieces), x, number)[0] for number in numbers]
    return found[0] if len(found) == 1 else concatenate(found, 3)


def _pad(x: Any, axis: int, missing: int) -> Any:
    return pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)])


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
