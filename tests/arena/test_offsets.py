"""Offsets: nothing overlaps that is needed at one time, and how near they come to the bound."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.cost.arena import Block, find_bound, place
from mithril.engine.alignment import ALIGNMENT, align
from mithril.engine.arena import Arena

from tests.profiles import scaled


@st.composite
def blocks(draw: st.DrawFn) -> list[Block]:
    found = []
    for _ in range(draw(st.integers(0, 30))):
        birth = draw(st.integers(0, 20))
        length = draw(st.one_of(st.integers(0, 4), st.integers(0, 20)))
        found.append(Block(draw(st.integers(0, 5000)), birth, birth + length))
    return found


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


@settings(max_examples=scaled(400), deadline=None)
@given(blocks())
def test_what_is_needed_at_one_time_lies_apart(given_blocks: list[Block]) -> None:
    offsets = place(given_blocks)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    parts = [(at, at + block.bytes) for at, block in zip(offsets, given_blocks, strict=True)]
    for i, a in enumerate(given_blocks):
        for j, b in enumerate(given_blocks[:i]):
            if a.birth <= b.death and b.birth <= a.death:
                assert not overlap(parts[i], parts[j])
    size = max((end for _, end in parts), default=0)
    bound = find_bound(given_blocks)
    moments = {block.birth for block in given_blocks}
    alive = [
        sum(align(b.bytes) for b in given_blocks if b.birth <= at <= b.death) for at in moments
    ]
    assert bound == max(alive, default=0)
    assert align(size) >= bound if given_blocks else size == 0


def test_memory_is_used_again() -> None:
    assert place([Block(100, 0, 1), Block(100, 2, 3), Block(100, 4, 5)]) == [0, 0, 0]
    assert find_bound([Block(100, 0, 1), Block(100, 2, 3)]) == 128


def test_the_smallest_gap_that_fits_is_taken() -> None:
    # Three large blocks leave gaps of 256 and of 64 bytes at moment 5; the last one fits both.
    tall = [Block(640, 0, 1), Block(576, 0, 9), Block(512, 2, 9), Block(448, 4, 9)]
    offsets = place([*tall, Block(64, 5, 5)])
    taken = sorted(
        (offset, offset + b.bytes)
        for offset, b in zip(offsets, tall, strict=False)
        if b.birth <= 5 <= b.death
    )
    gaps = [(b - a, a) for (_, a), (b, _) in zip([(0, 0), *taken], taken, strict=False) if b > a]
    fitting = [gap for gap in gaps if gap[0] >= 64]
    assert offsets[-1] == (min(fitting)[1] if fitting else taken[-1][1])


def test_an_empty_arena_is_as_good_as_can_be() -> None:
    assert Arena().ratio == 1.0
    assert Arena(size=300, bound=200).ratio == 1.5
