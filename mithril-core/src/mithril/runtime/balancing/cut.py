"""Cutting a chain of layers into contiguous stages, of which the slowest is as fast as can be.

This is the linear partition problem. Dynamic programming solves it: the least time of the slowest
of s stages for the first n layers is the least, over where the last stage begins, of the slower of
that stage and the best s - 1 stages before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from mithril.errors import PlanError
from mithril.units import format_bytes

MOST_CUTS = 200
"""So many ways to cut loops into parts are tried, at most."""
UNFIT = math.inf


@dataclass(frozen=True, slots=True)
class Unit:
    """What is put into a stage as a whole: a layer, or a loop, which may be cut into equal parts.

    Args:
        path: of the layer.
        seconds: that it takes for a batch.
        bytes: that it holds.
        repeats: how often a loop repeats; 1 for a layer.
    """

    path: str
    seconds: float
    bytes: float = 0.0
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Layers in stages.

    Args:
        units: one after another, loops in parts.
        stages: the stage of each.
    """

    units: tuple[Unit, ...]
    stages: tuple[int, ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        """How long each stage takes for a batch."""
        found = [0.0] * (1 + max(self.stages))
        for unit, stage in zip(self.units, self.stages, strict=True):
            found[stage] += unit.seconds
        return tuple(found)

    @property
    def slowest(self) -> float:
        """How long the slowest stage takes; `UNFIT` where a stage has two parts of a loop."""
        return max(self.seconds) if self._is_possible else UNFIT

    @property
    def _is_possible(self) -> bool:
        parts = [
            (unit.path, stage)
            for unit, stage in zip(self.units, self.stages, strict=True)
            if unit.repeats > 1
        ]
        return len(parts) == len(set(parts))

    @property
    def places(self) -> dict[str, int | tuple[int, ...]]:
        """The stage of each layer, by path, or those of the parts of a loop."""
        found: dict[str, tuple[int, ...]] = {}
        for unit, stage in zip(self.units, self.stages, strict=True):
            found[unit.path] = (*found.get(unit.path, ()), stage)
        return {path: of if len(of) > 1 else of[0] for path, of in found.items()}


def cut_optimally(units: Sequence[Unit], stages: int, memory: float = math.inf) -> Cut:
    """Return the cut whose slowest stage takes least time.

    Args:
        units: one after another.
        stages: how many there are; none stays empty.
        memory: bytes that a stage may hold.

    Raises:
        PlanError: there are fewer units than stages, or no cut fits into memory.

    >>> chain = [Unit("a", 1), Unit("b", 1), Unit("c", 2), Unit("d", 3)]
    >>> cut_optimally(chain, 2).stages
    (0, 0, 0, 1)
    """
    found = [
        Cut(cut, _partition(cut, stages, memory))
        for cut in _cut_loops(units, stages)
        if len(cut) >= stages and _partition(cut, stages, memory)
    ]
    return _choose(found, units, stages, memory)


def find_least_time(units: Sequence[Unit], stages: int, found: Cut) -> float:
    """Return seconds below which the slowest stage of no cut is.

    Where all ways to cut loops were tried, that is what the best cut takes; otherwise the share of
    a stage, or what takes longest of what cannot be cut.

    Args:
        units: one after another.
        stages: how many there are.
        found: what `cut_optimally` returns for them.
    """
    choices = [_list_counts(unit, stages) for unit in units]
    if math.prod(map(len, choices)) <= MOST_CUTS:
        return found.slowest
    longest = max(u.seconds / counts[-1] for u, counts in zip(units, choices, strict=True))
    return max(sum(unit.seconds for unit in units) / stages, longest)


def cut_greedily(units: Sequence[Unit], stages: int) -> Cut:
    """Return a cut in which each stage ends as soon as it has its share of what is left.

    Args:
        units: one after another.
        stages: how many there are; none stays empty.

    Raises:
        PlanError: there are fewer units than stages.

    >>> chain = [Unit("a", 1), Unit("b", 1), Unit("c", 2), Unit("d", 3)]
    >>> cut_greedily(chain, 2).stages
    (0, 0, 0, 1)
    """
    cuts = (cut for cut in _cut_loops(units, stages) if len(cut) >= stages)
    return _choose([Cut(cut, _fill(cut, stages)) for cut in cuts], units, stages, UNFIT)


def _choose(found: Sequence[Cut], units: Sequence[Unit], stages: int, memory: float) -> Cut:
    best = min(found, key=lambda cut: cut.slowest, default=None)
    if best is not None and best.slowest < UNFIT:
        return best
    if memory < UNFIT and found == [] and len(units) >= stages:
        raise PlanError(
            f"{len(units)} layers cannot be cut into {stages} stages of which each holds at most "
            f"{format_bytes(int(memory))}; use more stages, or split parameters further"
        )
    raise PlanError(
        f"model has {len(units)} layers, which cannot be cut into {stages} stages; use fewer "
        f"stages, or a Repeat whose count they divide"
    )


def _cut_loops(units: Sequence[Unit], stages: int) -> Iterator[tuple[Unit, ...]]:
    """Yield the units with each loop in as many parts as may be."""
    choices = [_list_counts(unit, stages) for unit in units]
    for counts in islice(product(*choices), MOST_CUTS):
        yield tuple(
            replace(unit, seconds=unit.seconds / count, bytes=unit.bytes / count)
            for unit, count in zip(units, counts, strict=True)
            for _ in range(count)
        )


def _list_counts(unit: Unit, stages: int) -> list[int]:
    """Return into how many parts a unit may be cut."""
    return [n for n in range(1, stages + 1) if unit.repeats % n == 0]


def _partition(units: Sequence[Unit], stages: int, memory: float) -> tuple[int, ...]:
    """Return the best stage of each unit, by dynamic programming; nothing where none fits."""
    count = len(units)
    best = [[math.inf] * (count + 1) for _ in range(stages + 1)]
    begins = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = 0.0
    for stage in range(1, stages + 1):
        for end in range(stage, count - (stages - stage) + 1):
            for begin, seconds in _list_last_stages(units, end, memory):
                if seconds >= best[stage][end]:
                    break  # longer stages only take longer
                slowest = max(best[stage - 1][begin], seconds)
                if slowest < best[stage][end]:
                    best[stage][end], begins[stage][end] = slowest, begin
    if math.isinf(best[stages][count]):
        return ()
    found: list[int] = []
    end = count
    for stage in range(stages, 0, -1):
        begin = begins[stage][end]
        found = [stage - 1] * (end - begin) + found
        end = begin
    return tuple(found)


def _list_last_stages(
    units: Sequence[Unit], end: int, memory: float
) -> Iterator[tuple[int, float]]:
    """Yield where a stage may begin that ends before a unit, and how long it takes."""
    seconds = held = 0.0
    loops: set[str] = set()
    for begin in range(end - 1, -1, -1):
        unit = units[begin]
        seconds, held = seconds + unit.seconds, held + unit.bytes
        if unit.path in loops or held > memory:
            return
        loops.add(unit.path)  # a stage has one part of a loop at most
        yield begin, seconds


def _fill(units: Sequence[Unit], stages: int) -> tuple[int, ...]:
    """Return the stage of each unit: it goes where it brings a stage nearer to its share."""
    found: list[int] = []
    left, here, stage = sum(unit.seconds for unit in units), 0.0, 0
    loops: set[str] = set()
    for number, unit in enumerate(units):
        stages_left = stages - stage
        share = (left + here) / stages_left
        is_full = here + unit.seconds / 2 > share or unit.path in loops
        has_to_end = len(units) - number < stages_left
        if loops and stages_left > 1 and (is_full or has_to_end):
            stage, here, loops = stage + 1, 0.0, set()
        loops.add(unit.path)
        here, left = here + unit.seconds, left - unit.seconds
        found.append(stage)
    return tuple(found)


__all__ = ["UNFIT", "Cut", "Unit", "cut_greedily", "cut_optimally", "find_least_time"]
