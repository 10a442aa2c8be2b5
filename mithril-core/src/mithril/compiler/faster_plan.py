"""The plan of a search, or one whose step is faster, by its timeline, than what costs the least.

A search adds up work and moves, one after another; a plan knows that sums of gradients travel
together, and that what nobody waits for goes on beside work. How much of it that hides is not known
before there is a plan. So other plans are made, in some ways:

- for some shares of it that are taken to be hidden,
- where batches alone are split: their sums all travel together, or are scattered to where
  parameters rest, which are gathered ahead of their use,
- as many people lay out a model: batches over all devices, with parameters at rest split over all,
  over the last axis, or whole, or with experts split over the last axis or all; batches over the
  last axis alone; or over all but that, with sequences over that, or all else as it is found.

That is taken whose timeline is the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from mithril.cost import Target, predict_timeline
from mithril.errors import PlanError, ShardingError
from mithril.plan import Plan
from mithril.plan.search import SearchResult
from mithril.sharding import Search
from mithril.sharding.search import ANNOTATIONS, DATA, FULLY_SHARDED, MIXED, THROUGHPUT
from mithril.units import format_seconds

NOTHING, LEAST_GAIN = 1e-9, 0.01
"""The part of a step's time that a plan has to save to be taken: more than rounding may take, and
more than is uncertain where only a few others are made."""
HIDDEN = (0.95, 0.5)
"""The shares of what nobody waits for that are taken to be hidden, besides none. Never all: what is
free is moved for nothing."""
SOME = 0.7
"""That share where batches are split over all axes but the last, or over the only one."""
TOGETHER = 0.995
"""That share where batches alone are split: all gradients are summed together, and start once."""
MANY, AXES = 1500, 2
"""Above so many choices, or axes, a search takes seconds in which more than batches is split, or
parameters may rest in any way."""
PICOSECOND = 1e-12
"""In seconds: what the times of searches are counted in."""

PlanFor = Callable[[Search], Plan]
"""Returns the plan of a search, within the memory that is granted."""


def choose_by_timeline(
    found: Plan, plan_for: PlanFor, search: Search, target: Target, donated: Collection[str]
) -> Plan:
    """Return the plan of a search, or a faster one that costs more one after another.

    Args:
        found: the plan of the search.
        plan_for: returns those of other searches.
        search: what is asked for.
        target: where the plan will run.
        donated: names of inputs that are given up.
    """
    first = found.search
    if first is None or not _is_timed(search, target):
        return found
    axes = tuple(axis.name for axis in search.list_axes(target.mesh))
    is_large = first.variables > MANY and len(axes) > AXES
    wanted = _list_searches(search, axes, first.variables, is_large=is_large)
    longest = predict_timeline(found, target.hardware).seconds
    others = _try_others(found, wanted, plan_for, target, donated)
    best = min(others, key=lambda one: one.seconds, default=None)
    if best is None or best.seconds >= longest * (1 - (LEAST_GAIN if is_large else NOTHING)):
        return found
    in_turn = replace(best.result, cost=best.result.seconds / PICOSECOND)
    first = replace(first, bound=min(first.bound, _find_bound(best, plan_for, search)))
    why = (
        f"{best.describe(axes)}; what costs the least one after another takes "
        f"{format_seconds(longest)}"
    )
    return replace(best.plan, search=in_turn.against(first), notes=(*best.plan.notes, why))


@dataclass(frozen=True, slots=True)
class _Tried:
    """A plan of another search, what that says of it, and the seconds of its step."""

    plan: Plan
    search: Search
    result: SearchResult
    seconds: float

    def describe(self, axes: Sequence[str]) -> str:
        """Return what it takes, and what was said that it was found with."""
        search = self.search
        said = (
            ("batches", search.batch_axes),
            ("parameters at rest", search.rest_axes),
            ("sequences", search.sequence_axes),
            ("experts", search.expert_axes),
        )
        lies = "".join(
            f", {what} over {', '.join(repr(axis) for axis in axes if axis in over)}"
            for what, over in said
            if over is not None
        )
        return (
            f"a step takes {format_seconds(self.seconds)} by its timeline, found with "
            f"{search.hidden:.0%} of what nobody waits for taken to be hidden{lies}"
        )


def _try_others(
    found: Plan,
    wanted: Sequence[Search],
    plan_for: PlanFor,
    target: Target,
    donated: Collection[str],
) -> list[_Tried]:
    """Return the plans that other searches find and that fit a device, if the first one does."""
    others, seen = list[_Tried](), [found]
    for other in wanted:
        try:
            plan = plan_for(other)
        except (PlanError, ShardingError):  # there is none within limits, or of too few heads
            continue
        if plan.search is None or any(plan.stages is one.stages for one in seen):
            continue
        seen.append(plan)
        if not _is_too_large(plan, found, donated):
            seconds = predict_timeline(plan, target.hardware).seconds
            others.append(_Tried(plan, other, plan.search, seconds))
    return others


def _list_searches(
    search: Search, axes: tuple[str, ...], variables: int, *, is_large: bool
) -> list[Search]:
    """Return what is searched for besides.

    Args:
        search: what is asked for.
        axes: of the mesh, the fastest one last.
        variables: how many are chosen.
        is_large: whether each search takes seconds.
    """
    much, little = HIDDEN
    own = [replace(search, hidden=share) for share in HIDDEN]
    if MIXED not in search.spaces:
        return own
    data, sharded = (replace(search, spaces=(space,)) for space in (DATA, FULLY_SHARDED))
    if is_large:
        return [replace(data, hidden=share) for share in HIDDEN]
    every, last, others = frozenset(axes), frozenset(axes[-1:]), frozenset(axes[:-1])
    found = [replace(data, hidden=much, batch_axes=every)]
    at_rest = replace(sharded, hidden=much, batch_axes=every)
    found += [replace(at_rest, rest_axes=over) for over in dict.fromkeys((every, last))]
    said = replace(search, spaces=(ANNOTATIONS,))
    found += _list_experts(replace(said, batch_axes=every), every, last)
    if len(axes) > AXES:
        return [*found, replace(search, hidden=little)]
    found += [replace(said, batch_axes=over) for over in dict.fromkeys((every, last))]
    if search.sequences:
        found.append(replace(said, batch_axes=others, sequence_axes=last))
    found += [replace(data, hidden=share) for share in (TOGETHER, much)]
    found.append(replace(sharded, hidden=much))
    if variables > MANY:
        return found
    found += [replace(one, hidden=share) for one in (data, sharded) for share in (little, 0.0)]
    found += own
    return [*found, replace(search, hidden=SOME, batch_axes=others or every)]


def _list_experts(said: Search, every: frozenset[str], last: frozenset[str]) -> Iterator[Search]:
    """Yield searches in which experts, if there are any, are split over the last axis or all."""
    for over in dict.fromkeys((last, every)) if said.experts else ():
        yield replace(said, expert_axes=over)


def _is_too_large(other: Plan, found: Plan, donated: Collection[str]) -> bool:
    """Whether a plan does not fit a device where another one does."""
    return found.memory(donated=donated).fits and not other.memory(donated=donated).fits


def _find_bound(best: _Tried, plan_for: PlanFor, search: Search) -> float:
    """Return what nothing costs less than one after another that only its own search may find."""
    if best.search.sequence_axes:  # attention that is computed as in no other search
        return best.result.bound
    if best.result.space != FULLY_SHARDED:
        return math.inf
    # Gradients go where they go in no other space. What was left out of a cost only makes it less,
    # so a bound without it is one, if a low one.
    try:
        found = plan_for(replace(search, spaces=(FULLY_SHARDED,))).search
    except PlanError:  # a search within limits ends, and may have met nothing
        return best.result.bound
    return best.result.bound if found is None else found.bound


def _is_timed(search: Search, target: Target) -> bool:
    """Whether a timeline tells more than the sum: devices that run in turn have nothing beside."""
    return (
        search.objective == THROUGHPUT
        and ANNOTATIONS not in search.spaces
        and not target.hardware.execution.in_turn
    )


__all__ = ["choose_by_timeline"]
