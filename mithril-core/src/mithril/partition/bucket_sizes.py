"""How many of what is reduced one after another travel together: by the time model.

A bucket is on its way once its last member is made and the bucket before has arrived. Few large
ones have few start-ups; with small ones more has arrived when the last member is made. Let member j
be made at r_j, have s_j bytes, and let a bucket of s bytes take a + b s seconds. Then the first j
have arrived at

    E(j) = min over i < j of max(r_j, E(i)) + a + b (s_i+1 + ... + s_j)

at best, which dynamic programming finds: what arrives earlier never delays what follows. Where
several cuts are as good, buckets are as large as still arrive in time, from the last one on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mithril.ir import Node

MOST = 256
"""Members are cut into no more parts than this; neighbours that are small count as one."""
SLACK = 1e-3
"""The part of the time until all have arrived that larger buckets may cost."""


@dataclass(frozen=True, slots=True)
class Member:
    """A collective that may travel with others.

    Args:
        node: what it is.
        bytes: of it.
        position: of the node in its graph.
        deadline: the position of the first collective that waits for it.
        ready: the seconds at which it is made.
    """

    node: Node
    bytes: int
    position: int
    deadline: int
    ready: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """What a bucket costs: `start + bytes * per_byte` seconds, and how large it may be.

    Args:
        start: seconds.
        per_byte: likewise.
        limit: the most bytes of a bucket of several.
    """

    start: float
    per_byte: float
    limit: int


def cut_evenly(members: Sequence[Member], limit: int) -> list[list[Member]]:
    """Return members in buckets of at most so many bytes, unless one alone is larger.

    Args:
        members: in the order in which they are made.
        limit: in bytes.
    """
    return _cut(members, lambda filled, member: filled + member.bytes > limit)


def cut_when_full(members: Sequence[Member], limit: int) -> list[list[Member]]:
    """Return members in buckets that are closed once they have so many bytes.

    Args:
        members: in the order in which they are made.
        limit: in bytes.
    """
    return _cut(members, lambda filled, _: filled >= limit)


def _cut(members: Sequence[Member], is_full: Callable[[int, Member], bool]) -> list[list[Member]]:
    """Return members in buckets; one is full by its bytes and the member that comes next."""
    found: list[list[Member]] = []
    filled = 0
    for member in members:
        if not found or is_full(filled, member) or not _is_in_time(found[-1], member):
            found.append([])
            filled = 0
        found[-1].append(member)
        filled += member.bytes
    return found


def cut_by_time(members: Sequence[Member], link: Link) -> list[list[Member]]:
    """Return members in the buckets with which all of them are predicted to arrive first.

    Args:
        members: in the order in which they are made, each with the time at which it is.
        link: what a bucket costs.
    """
    unit = sum(member.bytes for member in members) // MOST
    parts = cut_evenly(members, min(unit, link.limit))
    first = _list_first(parts, link.limit)
    sums = np.cumsum([0, *(sum(member.bytes for member in part) for part in parts)])
    ready = [part[-1].ready for part in parts]

    def arrive(begin: slice, end: int) -> np.ndarray:
        """Return when buckets arrive that end at one part and begin at each of some."""
        took = link.start + link.per_byte * (sums[end] - sums[begin])
        return np.asarray(np.maximum(ready[end - 1], arrived[begin]) + took)

    arrived = np.zeros(len(parts) + 1)
    for end in range(1, len(parts) + 1):
        arrived[end] = arrive(slice(first[end - 1], end), end).min()
    ends, until = [len(parts)], (1 + SLACK) * arrived[-1]
    while (end := ends[-1]) > 0:
        begin = first[end - 1]
        in_time = arrive(slice(begin, end), end) <= until
        begin += int(in_time.argmax())
        until -= link.start + link.per_byte * (sums[end] - sums[begin])
        ends.append(begin)
    cuts = pairwise(reversed(ends))
    return [[member for part in parts[i:j] for member in part] for i, j in cuts]


def _list_first(parts: Sequence[Sequence[Member]], limit: int) -> list[int]:
    """Return for each part the first one with which it may be in one bucket."""
    found, begin = [], 0
    for end, part in enumerate(parts):
        while begin < end and not _fits(parts[begin : end + 1], part, limit):
            begin += 1
        found.append(begin)
    return found


def _fits(parts: Sequence[Sequence[Member]], last: Sequence[Member], limit: int) -> bool:
    members = [member for part in parts for member in part]
    return sum(m.bytes for m in members) <= limit and _is_in_time(members, last[-1])


def _is_in_time(members: Sequence[Member], last: Member) -> bool:
    """Whether nothing waits for one of some members before the last one is made."""
    return all(last.position < member.deadline for member in members)


__all__ = ["Link", "Member", "cut_by_time", "cut_evenly", "cut_when_full"]
