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
    # All are there at moment 0; two go, and leave gaps of 448 and of 320 bytes. Both hold the last.
    first = [Block(512, 0, 9), Block(448, 0, 1), Block(384, 0, 9), Block(320, 0, 1)]
    found = place([*first, Block(256, 0, 9), Block(192, 5, 5)])
    assert found == [0, 512, 960, 1344, 1664, 1344]


def test_an_empty_arena_is_as_good_as_can_be() -> None:
    assert Arena().ratio == 1.0
    assert Arena(size=300, bound=200).ratio == 1.5
