"""The frontier: the cheapest way through all sections for each size of memory.

Sections are gone through in the order of the forward. A state is the bytes kept so far and the
seconds spent; a section may be run in a way whose working memory still fits on top of what the
sections before it keep, since these are what is there when its part of the backward runs. States
that are worse than others in both are forgotten, so that few remain where blocks are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mithril.ir import Value
from mithril.partition.recompute.sections import Pick, Section

STATES = 4096
"""How many states are remembered between two sections, at most."""
STEPS = 40
"""So often a range is halved."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """A way through all sections.

    Args:
        peak: the most bytes at once.
        seconds: that making things again takes in a step.
        picks: of each section, or several one after another, how it is run.
    """

    peak: int
    seconds: float
    picks: tuple[Pick, ...]

    def list_values(self) -> frozenset[Value]:
        """Return what is dropped."""
        return frozenset(value for pick in self.picks for value in pick.list_values())


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Finds ways through sections.

    Args:
        sections: in the order of the forward.
    """

    sections: Sequence[Section]

    def keep_all(self) -> Way:
        """Return the way that makes nothing again."""
        return _follow([section.picks[0] for section in self.sections])

    def find_least(self) -> Way:
        """Return the way that takes the least memory, and of these the fastest."""
        least = _search_least(self.sections)
        return self.find_fastest(least) or self.keep_all()

    def find_fastest(self, limit: int, states: int = STATES) -> Way | None:
        """Return the fastest way within some bytes; None if there is none.

        Args:
            limit: how many.
            states: how many are remembered between two sections.
        """
        return _search_fastest(self.sections, limit, states)

    def find_smallest(self, seconds: float, states: int = STATES) -> Way:
        """Return the way that takes the least memory of those that take so many seconds.

        Args:
            seconds: at most.
            states: how many are remembered between two sections.
        """
        best = self.keep_all()
        low, high = _search_least(self.sections), best.peak
        for _ in range(STEPS):
            if low > high:
                break
            middle = (low + high) // 2
            way = self.find_fastest(middle, states)
            if way is not None and way.seconds <= seconds:
                best, high = way, way.peak - 1
            else:
                low = middle + 1
        return best

    def list_ways(self, count: int, states: int = STATES // 16) -> list[Way]:
        """Return the fastest ways for sizes of memory from the least to all, without doubles.

        Args:
            count: how many, at most.
            states: how many are remembered between two sections.
        """
        most, least = self.keep_all(), self.find_least()
        found = {least.peak: least, most.peak: most}
        for step in range(1, count - 1):
            limit = least.peak + (most.peak - least.peak) * step // (count - 1)
            way = self.find_fastest(limit, states)
            if way is not None:
                found[way.peak] = way
        ordered = [found[peak] for peak in sorted(found)]
        return [
            w for at, w in enumerate(ordered) if all(w.seconds < o.seconds for o in ordered[:at])
        ]

    def find_bound(self, limit: int) -> float:
        """Return seconds that no way within some bytes can go below.

        That is the Lagrangian bound: for any price of memory, what is kept may cost that price. It
        holds for all sets of values, whether they are among the drop sets or not.

        Args:
            limit: how many bytes.
        """
        best = 0.0
        for price in self._list_prices():
            spent = 0.0
            for section in self.sections:
                best = max(best, spent - price * (limit - section.least))
                spent += section.bound(price)
                best = max(best, spent - price * (limit - section.entry))
        return best

    def _list_prices(self) -> list[float]:
        """Return the prices of memory at which drop sets become worth it."""
        found: set[float] = set()
        for section in self.sections:
            ordered = _hull(section.picks)
            for a, b in pairwise(ordered):
                found.add((b.seconds - a.seconds) / (a.kept - b.kept))
        distinct = sorted(found)
        return distinct[:: max(len(distinct) // STEPS, 1)]


def _hull(picks: Sequence[Pick]) -> list[Pick]:
    """Return the picks on the lower convex hull of bytes and seconds, from most to least bytes."""
    found: list[Pick] = []
    for pick in sorted(picks, key=lambda pick: (-pick.kept, pick.seconds)):
        if found and pick.seconds <= found[-1].seconds:
            continue
        if found and pick.kept == found[-1].kept:
            continue
        while len(found) > 1 and _slope(found[-2], found[-1]) >= _slope(found[-1], pick):
            found.pop()
        found.append(pick)
    return found


def _slope(a: Pick, b: Pick) -> float:
    return (b.seconds - a.seconds) / (a.kept - b.kept)


def _follow(picks: Sequence[Pick]) -> Way:
    kept, peak, seconds = 0, 0, 0.0
    for pick in picks:
        peak = max(peak, kept + pick.working)
        kept += pick.kept
        seconds += pick.seconds
    return Way(peak, seconds, tuple(picks))


# ------------------------------------------------------------------ searching


def _ways_from(sections: Sequence[Section], at: int) -> list[tuple[int, Pick]]:
    """Return how a section may be run, alone or with some after it, with how many these are."""
    section = sections[at]
    longer = (
        (count, pick) for count, pick in section.longer.items() if at + count <= len(sections)
    )
    return [*((1, pick) for pick in section.picks), *longer]


def _search_least(sections: Sequence[Section]) -> int:
    """Return the fewest bytes with which some way can do."""
    states: list[list[tuple[int, int]]] = [[] for _ in range(len(sections) + 1)]  # kept, peak
    states[0] = [(0, 0)]
    for at in range(len(sections)):
        for kept, peak in states[at]:
            for count, pick in _ways_from(sections, at):
                state = kept + pick.kept, max(peak, kept + pick.working)
                states[at + count].append(state)
        states[at + 1] = _thin(states[at + 1])
    return min((peak for _, peak in states[-1]), default=0)


def _thin(states: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for state in sorted(states):
        if not found or state[1] < found[-1][1]:
            found.append(state)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _States:
    """States before a section: bytes kept and seconds spent, and how each was reached."""

    kept: np.ndarray
    seconds: np.ndarray
    start: np.ndarray  # section that led here
    before: np.ndarray  # the state there
    way: np.ndarray  # and how it was run


def _search_fastest(sections: Sequence[Section], limit: int, most: int) -> Way | None:
    """Return the fastest way within some bytes; see `Frontier.find_fastest`."""
    zero = np.zeros(1, np.int64)
    arriving: list[list[_States]] = [[] for _ in range(len(sections) + 1)]
    arriving[0] = [_States(zero, np.zeros(1), zero, zero, zero)]
    reached: list[_States] = []
    for at in range(len(sections) + 1):
        if not arriving[at]:
            reached.append(_States(*(np.zeros(0, np.int64) for _ in range(5))))
            continue
        states = _prune(arriving[at], most)
        reached.append(states)
        for number, (count, pick) in enumerate(
            _ways_from(sections, at) if at < len(sections) else ()
        ):
            (fits,) = np.nonzero(states.kept + pick.working <= limit)
            if len(fits):
                arriving[at + count].append(_States(
                    states.kept[fits] + pick.kept,
                    states.seconds[fits] + pick.seconds,
                    np.full(len(fits), at),
                    fits,
                    np.full(len(fits), number),
                ))  # fmt: skip
    last = reached[-1]
    if not len(last.kept):
        return None
    return _follow(_trace(sections, reached, int(np.argmin(last.seconds))))


def _prune(arriving: Sequence[_States], most: int) -> _States:
    """Return the states of which no other is better in both, evenly chosen if they are many."""
    fields = [
        np.concatenate([getattr(states, name) for states in arriving])
        for name in ("kept", "seconds", "start", "before", "way")
    ]
    order = np.lexsort((fields[1], fields[0]))
    seconds = fields[1][order]
    least = np.minimum.accumulate(seconds)
    is_better = np.ones(len(order), bool)
    is_better[1:] = seconds[1:] < least[:-1]
    chosen = order[is_better]
    if len(chosen) > most:
        chosen = chosen[np.linspace(0, len(chosen) - 1, most).astype(np.int64)]
    return _States(*(values[chosen] for values in fields))


def _trace(sections: Sequence[Section], reached: Sequence[_States], state: int) -> list[Pick]:
    """Return the picks that led to a state behind the last section."""
    picks: list[Pick] = []
    at = len(sections)
    while at:
        states = reached[at]
        start, way = int(states.start[state]), int(states.way[state])
        picks.append(_ways_from(sections, start)[way][1])
        at, state = start, int(states.before[state])
    return picks[::-1]


__all__ = ["Frontier", "Way"]
