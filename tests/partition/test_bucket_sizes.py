"""Sizes of buckets: by the time model no cut into neighbours arrives earlier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.ir import Node
from mithril.ops.collective import AllReduce
from mithril.partition.bucket_sizes import (
    SLACK,
    Link,
    Member,
    cut_by_time,
    cut_evenly,
    cut_when_full,
)

from tests.profiles import scaled

NODE = Node(AllReduce(("data",), "sum"), (), ())
NEVER = 1_000_000


def members(sizes: Sequence[int], ready: Sequence[float] = ()) -> list[Member]:
    times = ready or [0.0] * len(sizes)
    return [Member(NODE, b, n, NEVER, r) for n, (b, r) in enumerate(zip(sizes, times, strict=True))]


def sizes_of(cut: Sequence[Sequence[Member]]) -> list[list[int]]:
    return [[member.bytes for member in bucket] for bucket in cut]


def arrive(cut: Sequence[Sequence[Member]], link: Link) -> float:
    """Return when the last bucket arrives: each waits for its last member and the one before."""
    now = 0.0
    for bucket in cut:
        now = max(now, bucket[-1].ready) + link.start
        now += link.per_byte * sum(member.bytes for member in bucket)
    return now


def list_cuts(given: Sequence[Member]) -> Iterator[list[Sequence[Member]]]:
    """Yield every cut into neighbours."""
    for mask in range(1 << (len(given) - 1)):
        ends = [0, *(n + 1 for n in range(len(given) - 1) if mask >> n & 1), len(given)]
        yield [given[i:j] for i, j in pairwise(ends)]


def is_allowed(bucket: Sequence[Member], limit: int) -> bool:
    is_small = len(bucket) == 1 or sum(member.bytes for member in bucket) <= limit
    return is_small and all(bucket[-1].position < member.deadline for member in bucket)


@st.composite
def gradients(draw: st.DrawFn) -> list[Member]:
    count, now, found = draw(st.integers(1, 7)), 0.0, []
    for position in range(count):
        now += draw(st.sampled_from([0.0, 1.0, 5.0, 30.0]))
        deadline = draw(st.sampled_from([NEVER, NEVER, position + 1, position + 2]))
        found.append(Member(NODE, draw(st.integers(1, 50)), position, deadline, now))
    return found


@settings(max_examples=scaled(200))
@given(gradients(), st.sampled_from([0.0, 1.0, 20.0]), st.sampled_from([30, 100, 10_000]))
def test_nothing_arrives_earlier(found: list[Member], start: float, limit: int) -> None:
    link = Link(start, 0.5, limit)
    cut = cut_by_time(found, link)
    assert [member for bucket in cut for member in bucket] == found
    assert all(is_allowed(bucket, limit) for bucket in cut)
    allowed = (c for c in list_cuts(found) if all(is_allowed(bucket, limit) for bucket in c))
    best = min(arrive(c, link) for c in allowed)
    assert best <= arrive(cut, link) * (1 + 1e-9) <= best * (1 + SLACK) * (1 + 2e-9)


def test_a_slow_link_starts_early_and_a_fast_one_hides_all_but_the_last() -> None:
    made = members([10] * 6, [float(n) for n in range(1, 7)])
    slow, fast = Link(0.1, 1.0, NEVER), Link(0.1, 0.001, NEVER)
    assert len(cut_by_time(made, slow)[0]) == 1
    assert len(cut_by_time(made, slow)) < len(made)
    last = cut_by_time(made, fast)[-1]
    assert len(last) == 1


def test_start_up_alone_makes_one_bucket() -> None:
    assert sizes_of(cut_by_time(members([10] * 6), Link(100.0, 0.1, NEVER))) == [[10] * 6]


def test_many_members_are_cut_no_finer_than_is_worth_it() -> None:
    made = members([10] * 5000, [n * 1e-3 for n in range(5000)])
    cut = cut_by_time(made, Link(1e-6, 1e-4, 1 << 20))
    assert sum(map(len, cut)) == 5000
    assert 2 < len(cut) <= 300


def test_buffers_of_a_size_hold_no_more_and_a_larger_value_is_alone() -> None:
    made = members([40, 40, 40, 200, 10])
    assert sizes_of(cut_evenly(made, 100)) == [[40, 40], [40], [200], [10]]
    assert sizes_of(cut_when_full(made, 100)) == [[40, 40, 40], [200], [10]]
    hurried = [Member(NODE, 40, 0, 1), Member(NODE, 40, 1, NEVER)]
    assert sizes_of(cut_evenly(hurried, 100)) == [[40], [40]]
