"""How blocks of keys and values go round a ring of devices, and which queries they meet there.

In round r a device holds the block of the device r places before it; it computes with that block
and sends it on (Liu et al., "Ring Attention with Blockwise Transformers", 2023). Without causality
a block is a device's part of the sequence; under causality it is the two pieces that a device has
in zig-zag order (`mithril.ops.sequence_pieces`). From another device every device then sees exactly
half: its high queries see the low keys, and either the low queries see the low keys (of a device
before it) or the high ones the high keys (of one behind it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mithril.ops.choice import greater_equal, where
from mithril.ops.collective import TakeShard
from mithril.ops.sequence_pieces import ALL, HIGH, LOW, PICKED, Pieces, Sight
from mithril.ops.shape import concatenate


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
class Ring(Pieces):
    """The ring as one device sees it; see `Pieces`."""

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

    def see(self, sight: Sight, at: Round, meeting: Meeting) -> list[Any]:
        """Return what is added to the scores of a meeting, as a list of one, or of none."""
        take = partial(_take, numbers=self._numbers(at, meeting.keys), pieces=self.pieces)
        return sight.of(meeting.queries, at.from_before, take)

    def _numbers(self, at: Round, keys: str) -> list[Any]:
        """Return the numbers of the pieces of a block."""
        if not self.zigzag:
            return [at.owner]
        low, high = at.owner, self.pieces - 1 - at.owner
        if keys == PICKED:
            return [where(at.from_before, low, high)]
        return {ALL: [low, high], LOW: [low], HIGH: [high]}[keys]


def _take(x: Any, numbers: Sequence[Any], pieces: int) -> Any:
    """Return some pieces of the last dimension, side by side."""
    found = [x.builder.apply(TakeShard(3, pieces), x, number)[0] for number in numbers]
    return found[0] if len(found) == 1 else concatenate(found, 3)


__all__: list[str] = []
