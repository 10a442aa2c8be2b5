"""Blocks: stretches of a forward between points at which little is alive for the rest of it.

What a block hands on to later ones, its exits, is kept; the rest of its buffers may be dropped.
Blocks are told apart by what they consist of, so that equal ones are solved once, and what repeats
in several blocks, as attention and feed-forward do, is one block.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from mithril.partition.recompute.buffers import Around, Flow, Numbers
from mithril.partition.recompute.twins import Twin

BESIDE, WIDER = 3, 1.5
"""A point is none if, of so many on either side, some have as many times fewer bytes."""
LONGEST_PERIOD = 8
"""How many stretches, at most, may be one block."""


@dataclass(frozen=True, eq=False)
class Block:
    """A stretch of a forward, and the part of the backward that reads it.

    Args:
        flow: of the whole graph.
        start: position of its first node.
        end: position behind its last node.
        late_start: position, in the backward, of the first node of its part.
        late_end: position behind the last one.
        exits: buffers that later blocks read.
    """

    flow: Flow
    start: int
    end: int
    late_start: int
    late_end: int
    exits: frozenset[int]

    @cached_property
    def buffers(self) -> Numbers:
        """What it makes, and what a loop starts from."""
        carries = (n for n, buffer in enumerate(self.flow.buffers) if buffer.maker < 0)
        own = (n for made in self.flow.made[self.start : self.end] for n in made)
        return (*(carries if self.start == 0 else ()), *own)

    @cached_property
    def needed(self) -> tuple[tuple[int, Numbers], ...]:
        """Positions of the backward's nodes that read its buffers, and which."""
        own = set(self.buffers)
        found = []
        for position in range(self.late_start, self.late_end):
            read = tuple(n for n in self.flow.late[position] if n in own)
            if read:
                found.append((position, read))
        return tuple(found)

    @cached_property
    def residuals(self) -> frozenset[int]:
        """The buffers that the backward reads."""
        return frozenset(number for _, read in self.needed for number in read)

    @cached_property
    def around(self) -> tuple[Around, ...]:
        """What the backward has of its own as each node runs, those of the forward first."""
        count, around = len(self.flow.nodes), self.flow.around
        late = around[count + self.late_start : count + self.late_end]
        return (*around[self.start : self.end], *late)

    @cached_property
    def spare(self) -> Numbers:
        """Its nodes that the forward runs for the backward alone, the last one first."""
        return tuple(at for at in self.flow.spare if self.start <= at < self.end)

    @cached_property
    def twins(self) -> Mapping[int, Sequence[tuple[int, Twin]]]:
        """Twins of its nodes, with these, by their positions in its part of the backward."""
        found: dict[int, list[tuple[int, Twin]]] = {}
        for at, twin in self.flow.twins.items():
            if self.start <= at < self.end and self.late_start <= twin.at < self.late_end:
                found.setdefault(twin.at, []).append((at, twin))
        return found

    @cached_property
    def ends(self) -> Mapping[int, Sequence[int]]:
        """Positions at which twins are needed last, and of which nodes they are."""
        found: dict[int, list[int]] = {}
        for some in self.twins.values():
            for at, twin in some:
                found.setdefault(min(twin.until, self.late_end - 1), []).append(at)
        return found

    @cached_property
    def key(self) -> Hashable:
        """What equal blocks have in common."""
        flow, numbers = self.flow, {n: i for i, n in enumerate(self.buffers)}

        def rename(read: Numbers) -> tuple[int, ...]:
            return tuple(numbers.get(n, -1) for n in read)

        nodes = tuple(
            (flow.nodes[at].op, rename(flow.reads[at]), rename(flow.made[at]), flow.seconds[at])
            for at in range(self.start, self.end)
        )
        sizes = tuple((flow.buffers[n].bytes, flow.buffers[n].is_fixed) for n in self.buffers)
        needed = tuple((at - self.late_start, rename(read)) for at, read in self.needed)
        exits = rename(tuple(sorted(self.exits)))
        spare = tuple(at - self.start for at in self.spare)
        twins = tuple(
            (at - self.start, place - self.late_start, twin.until - twin.at, twin.bytes)
            for place, some in self.twins.items()
            for at, twin in some
        )
        return nodes, sizes, needed, exits, spare, twins, self.late_end - self.late_start

    def translate(self, numbers: Collection[int], other: Block) -> list[int]:
        """Return the buffers of an equal block that correspond to some of this one."""
        places = {number: at for at, number in enumerate(self.buffers)}
        return [other.buffers[places[number]] for number in numbers]


def cut_blocks(flow: Flow) -> list[Block]:
    """Return a forward in blocks."""
    blocks = _make_blocks(flow, _find_cuts(flow))
    period, first, count = _find_period([block.key for block in blocks])
    if period == 1:
        return blocks
    inside = set(range(first, first + period * count)) - set(range(first, len(blocks), period))
    starts = [block.start for at, block in enumerate(blocks) if at not in inside]
    return _make_blocks(flow, [start for start in starts if start])


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Return several blocks, one after the other, as one."""
    first, last = blocks[0], blocks[-1]
    exits = frozenset[int]().union(*(block.exits for block in blocks))
    kept = frozenset(n for n in exits if first.flow.last_reads[n] >= last.end)
    late_start = min(block.late_start for block in blocks)
    late_end = max(block.late_end for block in blocks)
    return Block(first.flow, first.start, last.end, late_start, late_end, kept)


def _find_cuts(flow: Flow) -> list[int]:
    """Return the positions before which a block ends: fewer bytes are alive there than around."""
    crossing, made = _count_crossing(flow), 0
    found: list[int] = []
    for at in range(1, len(flow.nodes)):
        made += sum(flow.buffers[n].bytes for n in flow.made[at - 1])
        is_least = crossing[at] <= crossing[at - 1] and (
            crossing[at] < crossing[at + 1] or crossing[at] == crossing[at - 1]
        )
        if _is_beside_loop(flow, at) or (is_least and made >= 2 * crossing[at] > 0):
            found.append(at)
            made = 0
    return _leave_narrow(flow, found, crossing)


def _leave_narrow(flow: Flow, cuts: list[int], crossing: Sequence[int]) -> list[int]:
    """Return the positions without those that have much narrower ones on both sides."""
    sizes = [crossing[at] for at in cuts]
    kept = []
    for number, at in enumerate(cuts):
        before = min(sizes[max(number - BESIDE, 0) : number], default=0)
        behind = min(sizes[number + 1 : number + 1 + BESIDE], default=0)
        if _is_beside_loop(flow, at) or crossing[at] <= WIDER * max(before, behind):
            kept.append(at)
    return kept


def _is_beside_loop(flow: Flow, at: int) -> bool:
    return bool(flow.nodes[at].op.bodies or flow.nodes[at - 1].op.bodies)


def _count_crossing(flow: Flow) -> list[int]:
    """Return the bytes that are made before each position and read by the forward from there on."""
    changes = [0] * (len(flow.nodes) + 2)
    for buffer, last in zip(flow.buffers, flow.last_reads, strict=True):
        if last > buffer.maker >= 0:
            changes[buffer.maker + 1] += buffer.bytes
            changes[last + 1] -= buffer.bytes
    found, alive = [], 0
    for change in changes:
        alive += change
        found.append(alive)
    return found


def _make_blocks(flow: Flow, cuts: Sequence[int]) -> list[Block]:
    """Return the blocks between some positions; all of the backward belongs to one of them."""
    edges = list(pairwise([0, *cuts, len(flow.nodes)]))
    owner = [0] * len(flow.buffers)
    for at, (start, end) in enumerate(edges):
        for made in flow.made[start:end]:
            for number in made:
                owner[number] = at
    starts, ends = [len(flow.late)] * len(edges), [0] * len(edges)
    for position, read in enumerate(flow.late):
        for at in {owner[number] for number in read}:
            starts[at], ends[at] = min(starts[at], position), position + 1
    ends[0] = len(flow.late)
    reached = 0
    for at in reversed(range(len(edges))):
        starts[at] = min(starts[at], reached)
        ends[at] = max(ends[at], starts[at])
        reached = max(reached, ends[at])
    last = flow.last_reads
    return [
        Block(flow, start, end, starts[at], ends[at], frozenset(
            n for made in flow.made[start:end] for n in made
            if last[n] >= end and n in flow.handed_on
        ))
        for at, (start, end) in enumerate(edges)
    ]  # fmt: skip


def _find_period(keys: Sequence[Hashable]) -> tuple[int, int, int]:
    """Return how many blocks repeat, the first of them, and how often: what covers the most."""
    best, found = 0, (1, 0, len(keys))
    for period in range(1, min(LONGEST_PERIOD, len(keys) // 2) + 1):
        start = 0
        while start < len(keys):
            at = start
            while at + period < len(keys) and keys[at] == keys[at + period]:
                at += 1
            count = (at - start) // period + 1
            if count > 1 and count * period > best:
                best, found = count * period, (period, start, count)
            start = max(at, start) + 1
    return found


__all__ = ["Block", "cut_blocks", "join_blocks"]
