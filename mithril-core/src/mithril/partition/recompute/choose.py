"""Choose what is computed again: the fastest way within a budget, checked on finished plans.

Ways are found on buffers and intervals (`frontier`); what the plan that follows from one takes is
measured by the caller. As far as that differs from what was expected, the search is moved by as
much and goes on. What is returned has been measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import NoReturn

from mithril.cost.liveness import HOST
from mithril.cost.memory import PARTS, DeviceMemory
from mithril.errors import PlanError
from mithril.ir import Value
from mithril.partition.recompute.frontier import Frontier, Way
from mithril.partition.recompute.integer_program import solve
from mithril.partition.recompute.keep_dear import rank_by_price
from mithril.partition.recompute.sections import LocalPart, Reading, read_part
from mithril.plan.policy import TradeOff
from mithril.units import format_bytes

NEXT_TO_NOTHING = 0.01
"""The part of a step's time that `selective` may cost."""
TRIES = 6
"""So often a plan is measured and the search moved, at most."""
ROUNDS, SMALLER = 24, 3
"""So often an integer program is solved without sets that take too much, and with less room."""
ALL_SETS, PROGRAM, LAGRANGIAN = "all sets", "an integer program", "Lagrangian relaxation"
"""How a bound is found."""
ALIKE = 1e-9
"""Times that differ by such a part are the same."""
OF_ESTIMATES = " of estimates"
"""What is said of a bound where kernels or devices take another time together than each alone."""
POINTS = 12
"""How many points a trade-off curve has, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a plan takes.

    Args:
        peaks: for each part, the most bytes that one of its devices holds at once.
        seconds: of a step.
        fullest: the devices that hold the most.
    """

    peaks: tuple[int, ...]
    seconds: float
    fullest: DeviceMemory


Measure = Callable[[frozenset[Value]], Measured]
"""Returns what the plan takes that computes some values again."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What is computed again.

    Args:
        dropped: the values that are not kept.
        measured: what the plan takes.
        seconds: predicted time that a step takes more than one that keeps everything.
        bound: the least time that any choice within the budget takes more; None without a budget.
        curve: what cheaper and dearer choices cost, by peak from the largest.
        bound_by: how the bound was found.
    """

    dropped: frozenset[Value]
    measured: Measured
    seconds: float
    bound: float | None
    curve: tuple[TradeOff, ...]
    bound_by: str = ""

    def later_by(self, seconds: float) -> Choice:
        """Return the choice seen from a plan that takes so much less if it keeps everything."""
        curve = tuple(TradeOff(point.peak, point.seconds + seconds) for point in self.curve)
        bound = None if self.bound is None else self.bound + seconds
        return replace(self, seconds=self.seconds + seconds, bound=bound, curve=curve)

    def beside(self, others: Sequence[Choice]) -> Choice:
        """Return the choice with the bound and the curve of it and others together."""
        every = [self, *others]
        bound, by = min((one.bound or 0.0, one.bound_by) for one in every)
        points = sorted({point for one in every for point in one.curve}, key=_rank_point)
        best = accumulate((point.seconds for point in points), min)
        lowest = [one for one, least in zip(points, best, strict=True) if one.seconds <= least]
        return replace(self, bound=bound, bound_by=by, curve=tuple(lowest[::-1]))


def choose_within(parts: Sequence[LocalPart], limit: int, measure: Measure, name: str) -> Choice:
    """Return the fastest choice with which no device holds more than some bytes.

    Args:
        parts: the local programs of a plan.
        limit: how many bytes.
        measure: says what a plan takes.
        name: of the budget, for messages.

    Raises:
        PlanError: there is none.
    """
    return _Search(parts, measure).find_within(limit, name)


def choose_cheap(parts: Sequence[LocalPart], measure: Measure) -> Choice:
    """Return the choice with the lowest peak that costs next to no time.

    Args:
        parts: the local programs of a plan.
        measure: says what a plan takes.
    """
    return _Search(parts, measure).find_cheap()


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Parts on the same devices, whose memory they share.

    Args:
        first: number of one of the parts.
        readings: of them, one after the other.
        frontier: the ways through them.
        layers: what is dropped of them if every layer is computed again.
    """

    first: int
    readings: Sequence[Reading]
    frontier: Frontier
    layers: frozenset[Value]

    def keep_all(self) -> int:
        """Return the most bytes at once if everything is kept."""
        kept = list(accumulate((reading.kept for reading in self.readings), initial=0))
        return max(
            before + reading.peak for before, reading in zip(kept, self.readings, strict=False)
        )


Ways = tuple[Way, ...]
"""One for each group."""


class _Search:
    def __init__(self, parts: Sequence[LocalPart], measure: Measure) -> None:
        self._measure = measure
        self._known: dict[frozenset[Value], Measured] = {}
        self._groups = _group(parts)
        self._base = self._find(frozenset())
        most = tuple(group.frontier.keep_all() for group in self._groups)
        # How much more is in memory than what ways count, as it was measured last, and than what
        # is counted if everything is kept.
        self._is_timed = all(not part.hardware.execution.lays_out for part in parts)
        keeping = self._find(_list_values(most))
        self._others = self._compare(most, keeping)
        self._beside = tuple(
            keeping.peaks[group.first] - group.keep_all() for group in self._groups
        )
        self._is_exact = True  # whether that was always as much

    def find_within(self, limit: int, name: str) -> Choice:
        """Return the fastest choice within some bytes; see `choose_within`."""
        if max(self._base.peaks) <= limit:
            return self._make(frozenset(), 0.0)
        self._approach(limit)
        is_found = self._find_best(limit) is not None or self._measure_least(limit)
        is_found |= not is_found and self._measure_layers(limit)
        bound, by = self._find_bound(limit)
        if by != ALL_SETS or not (is_found and self._is_exact):
            solved = self._solve(limit, 0.0 if by == ALL_SETS else bound)
            bound, by = (solved, PROGRAM) if by == ALL_SETS or solved > bound else (bound, by)
        best = self._find_best(limit)
        if best is None:
            self._refuse(limit, name)
        return self._make(best, bound, by)

    def _find_best(self, limit: int) -> frozenset[Value] | None:
        """Return what is dropped in the fastest plan that was measured and keeps to a limit."""
        fitting = (one for one, measured in self._known.items() if max(measured.peaks) <= limit)

        def rank(dropped: frozenset[Value]) -> tuple[float, int]:
            return self._count_seconds(dropped), max(self._known[dropped].peaks)

        return min(fitting, key=rank, default=None)

    def _count_seconds(self, dropped: frozenset[Value]) -> float:
        """Return the seconds that a plan takes more than one that keeps everything."""
        return max(self._known[dropped].seconds - self._base.seconds, 0.0)

    def _solve(self, limit: int, bound: float) -> float:
        """Measure what an integer program finds, and return its bound.

        What that leaves out of account may be more than there is room for. If few nodes may run
        again it is solved again, without such sets and then with less room.

        Args:
            limit: how many bytes.
            bound: seconds that no choice goes below.
        """
        room = [limit - others for others in self._beside]
        refuted: list[set[frozenset[int]]] = [set() for _ in room]
        rounds, smaller = 0, 0
        while smaller < SMALLER:
            best = self._find_best(limit)
            taken = inf if best is None else self._count_seconds(best)
            if taken <= bound * (1 + ALIKE):
                break
            gap = taken / bound - 1 if bound else inf
            answers = solve([group.readings for group in self._groups], room, refuted, gap)
            if not smaller:
                bound = max([bound, *(answer.bound for answer in answers)])
            if max((answer.seconds for answer in answers), default=inf) >= taken * (1 - ALIKE):
                break
            dropped = frozenset[Value]().union(*(answer.dropped for answer in answers))
            measured = self._find(dropped)
            self._check_time(max(answer.seconds for answer in answers), measured)
            over = [max(measured.peaks[group.first] - limit, 0) for group in self._groups]
            if not any(over) or not all(answer.is_best for answer in answers):
                break  # a large program takes seconds, and found no more in less room
            rounds += 1
            if rounds <= ROUNDS:
                for some, answer, more in zip(refuted, answers, over, strict=True):
                    some.update([answer.runs] if more else [])
            else:
                smaller += 1
                room = [size - more for size, more in zip(room, over, strict=True)]
        return bound

    def _approach(self, limit: int) -> None:
        """Measure ways until one takes what is expected of it."""
        found: list[tuple[Ways, Measured]] = []
        for _ in range(TRIES):
            ways, others = self._find_fastest(limit), self._others
            is_known = _list_values(ways) in self._known
            measured = self._find(_list_values(ways))
            found.append((ways, measured))
            self._note(ways, measured)
            if self._others == others:
                return
            if is_known:
                break
        self._halve(limit, found)

    def _halve(self, limit: int, known: Sequence[tuple[Ways, Measured]]) -> None:
        """Measure ways between those that keep to a limit and those that do not.

        Where a compiler arranges a program anew, what it takes is no fixed sum more than expected.

        Args:
            limit: how many bytes.
            known: what was measured so far.
        """
        fits = [ways for ways, measured in known if max(measured.peaks) <= limit]
        fails = [ways for ways, measured in known if max(measured.peaks) > limit]
        low = [
            max((ways[at].peak for ways in fits), default=group.frontier.find_least().peak)
            for at, group in enumerate(self._groups)
        ]
        high = [
            min((ways[at].peak for ways in fails), default=group.frontier.keep_all().peak)
            for at, group in enumerate(self._groups)
        ]
        for _ in range(TRIES):
            middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
            ways = tuple(
                group.frontier.find_fastest(at) or group.frontier.find_least()
                for group, at in zip(self._groups, middle, strict=True)
            )
            is_known = _list_values(ways) in self._known
            measured = self._find(_list_values(ways))
            self._note(ways, measured)
            if max(measured.peaks) <= limit:
                low = middle
            else:
                high = [min(at, way.peak) for at, way in zip(middle, ways, strict=True)]
            if is_known or any(a >= b for a, b in zip(low, high, strict=True)):
                break

    def find_cheap(self) -> Choice:
        """Return the choice with the lowest peak that costs next to no time."""
        allowed = NEXT_TO_NOTHING * self._base.seconds
        limit = allowed
        for _ in range(TRIES):
            ways = tuple(group.frontier.find_smallest(limit) for group in self._groups)
            measured = self._find(_list_values(ways))
            is_cheap = measured.seconds <= self._base.seconds + allowed
            if is_cheap and max(measured.peaks) < max(self._base.peaks):
                return self._make(_list_values(ways), None)
            limit /= 2
        return self._make(frozenset(), None)

    # ---------------------------------------------------------------- steps

    def _find_fastest(self, limit: int) -> Ways:
        """Return the fastest ways that are expected to keep to a limit, or else the smallest."""
        return tuple(
            group.frontier.find_fastest(limit - others) or group.frontier.find_least()
            for group, others in zip(self._groups, self._others, strict=True)
        )

    def _measure_least(self, limit: int) -> bool:
        """Return whether the ways that take the least memory keep to a limit."""
        ways = tuple(group.frontier.find_least() for group in self._groups)
        measured = self._find(_list_values(ways))
        self._note(ways, measured)
        return max(measured.peaks) <= limit

    def _measure_layers(self, limit: int) -> bool:
        """Return whether every layer computed again keeps to a limit; fill what it leaves free."""
        every = frozenset[Value]().union(*(group.layers for group in self._groups))
        if max(self._find(every).peaks) > limit:
            return False
        ranked = [rank_by_price(group.readings, group.layers) for group in self._groups]
        low, high = [0] * len(ranked), [len(values) for values in ranked]
        while low != high:
            middle = [(a + b + 1) // 2 for a, b in zip(low, high, strict=True)]
            peaks = self._find(self._keep_first(ranked, middle)).peaks
            for at, group in enumerate(self._groups):
                fits = peaks[group.first] <= limit
                low[at], high[at] = (middle[at], high[at]) if fits else (low[at], middle[at] - 1)
        self._find(self._keep_first(ranked, low))
        return True

    def _keep_first(self, ranked: Sequence[list[Value]], counts: Sequence[int]) -> frozenset[Value]:
        """Return what every layer computed again drops, less the first of some values of each."""
        triples = zip(self._groups, ranked, counts, strict=True)
        return frozenset[Value]().union(*(g.layers.difference(v[:n]) for g, v, n in triples))

    def _refuse(self, limit: int, name: str) -> NoReturn:
        """Raise for a limit that nothing keeps to."""
        least = min(self._known.values(), key=lambda found: max(found.peaks))
        raise PlanError(
            f"{name} leaves {format_bytes(limit)} to a device, which is too little; the least "
            f"possible is {format_bytes(max(least.peaks))}, most of it {_list_largest(least)}, at "
            f"{least.fullest.at}; give more, or split more over devices (zero=, sharding)"
        )

    def _find(self, dropped: frozenset[Value]) -> Measured:
        if dropped not in self._known:
            self._known[dropped] = self._measure(dropped)
        return self._known[dropped]

    def _compare(self, ways: Ways, measured: Measured) -> tuple[int, ...]:
        """Return how much more each group's devices hold than what its way counts."""
        return tuple(
            measured.peaks[group.first] - way.peak
            for group, way in zip(self._groups, ways, strict=True)
        )

    def _note(self, ways: Ways, measured: Measured) -> None:
        """Take note how much more a plan takes than what its ways count."""
        self._others = self._compare(ways, measured)
        self._is_exact &= self._others == self._beside
        self._check_time(max(way.seconds for way in ways), measured)

    def _check_time(self, expected: float, measured: Measured) -> None:
        """Take note whether a plan takes as long as was expected, so that bounds are proven."""
        seconds = measured.seconds - self._base.seconds
        self._is_timed &= abs(seconds - expected) <= ALIKE * self._base.seconds

    # ---------------------------------------------------------------- the answer

    def _make(self, dropped: frozenset[Value], bound: float | None, by: str = "") -> Choice:
        seconds = self._count_seconds(dropped)
        if bound is not None and bound >= seconds * (1 - ALIKE):
            bound = seconds
        by += "" if self._is_timed or not by else OF_ESTIMATES
        return Choice(dropped, self._known[dropped], seconds, bound, self._list_curve(), by)

    def _find_bound(self, limit: int) -> tuple[float, str]:
        """Return what no choice within a limit can go below, and how that is known."""
        if all(reading.has_all for group in self._groups for reading in group.readings):
            return inf, ALL_SETS
        bound = max(
            group.frontier.find_bound(limit - others)
            for group, others in zip(self._groups, self._beside, strict=True)
        )
        return bound, LAGRANGIAN

    def _list_curve(self) -> tuple[TradeOff, ...]:
        """Return peaks and seconds of choices from the largest peak to the least."""
        points = [
            [TradeOff(way.peak + more, way.seconds) for way in group.frontier.list_ways(POINTS)]
            for group, more in zip(self._groups, self._others, strict=True)
        ]
        found = []
        for peak in sorted({point.peak for some in points for point in some}, reverse=True):
            fitting = [[p.seconds for p in some if p.peak <= peak] for some in points]
            if all(fitting):
                found.append(TradeOff(peak, max(map(min, fitting))))
        return tuple(found)


def _rank_point(point: TradeOff) -> tuple[int, float]:
    return point.peak, point.seconds


def _group(parts: Sequence[LocalPart]) -> list[_Group]:
    """Return the parts that share devices as groups, without those that nothing can be said of."""
    found: dict[tuple[int, ...], list[int]] = {}
    for number, part in enumerate(parts):
        found.setdefault(part.devices, []).append(number)
    groups = []
    for numbers in found.values():
        readings = [read_part(parts[number]) for number in numbers]
        sections = [section for reading in readings for section in reading.sections]
        layers = frozenset[Value]().union(*(parts[number].layers for number in numbers))
        groups.append(_Group(numbers[0], readings, Frontier(sections), layers))
    return groups


def _list_values(ways: Ways) -> frozenset[Value]:
    return frozenset[Value]().union(*(way.list_values() for way in ways))


def _list_largest(measured: Measured) -> str:
    """Return in words what takes most of the memory of the fullest devices."""
    held = (part for part in PARTS if part != HOST)  # which is no part of the peak
    parts = ((measured.fullest.parts.get(part, 0), part) for part in held)
    largest = sorted(((size, part) for size, part in parts if size), reverse=True)[:2]
    return " and ".join(f"{part} ({format_bytes(size)})" for size, part in largest)


__all__ = ["Choice", "Measure", "Measured", "choose_cheap", "choose_within"]
