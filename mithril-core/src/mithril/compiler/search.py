"""Plans that are searched for: within the memory that a user grants, and by their timelines.

A search knows what a device holds between phases; a plan knows its fullest moment. Where that is
above what was granted, the search is made again with as much less as it was above, a few times.

A search adds up work and moves, one after another; a plan knows that sums of gradients travel
together, and that what nobody waits for goes on beside work. How much of it that hides is not known
before there is a plan, so plans are made for some shares of it, and some that split batches
alone, whose sums all travel together, or are scattered to where parameters rest, which are gathered
ahead of their use; that is taken whose timeline is the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from mithril.compiler.request import PlanOptions, Request
from mithril.cost import Target, predict_timeline
from mithril.errors import PlanError
from mithril.plan import Plan
from mithril.plan.search import SearchResult
from mithril.sharding import MEMORY, Known, Search
from mithril.sharding.search import ANNOTATIONS, DATA, FULLY_SHARDED, MIXED, THROUGHPUT
from mithril.units import format_bytes, format_seconds

ROUNDS = 6
"""So many searches are made at most."""
LEAST_GAIN = 0.01
"""The part of a step's time that a plan has to save which costs more by the measure of a search."""
HIDDEN = (0.95, 0.5)
"""The shares of what nobody waits for that are taken to be hidden, besides none. Never all: what is
free is moved for nothing."""
TOGETHER = 0.995
"""That share where batches alone are split: all gradients are summed together, and start once."""
MANY, AXES = 1500, 2
"""Above so many choices, or axes, those plans split batches alone: a search takes seconds there.
Parameters may rest split in one of them, on no more axes than these."""
PICOSECOND = 1e-12
"""In seconds: what the times of searches are counted in."""
LISTED = 3
"""So many kinds of memory are named that take most."""


def complete(search: Search | None, request: Request) -> Search | None:
    """Return a search that knows what the inputs of a graph are.

    Args:
        search: what is asked for.
        request: what is asked of the plan.
    """
    if search is None:
        return None
    return replace(
        search,
        batches=frozenset(request.batches),
        parameters=frozenset(request.parameters),
        stacked=request.stacked,
        given_up=request.donated,
    )


def limit_fusion(options: PlanOptions) -> PlanOptions:
    """Return options by which no bucket is larger than a search admits an all_reduce to be."""
    search, fusion = options.search, options.fusion
    if search is None or search.all_reduce is None:
        return options
    most = search.all_reduce if fusion.nbytes is None else min(search.all_reduce, fusion.nbytes)
    return replace(options, fusion=replace(fusion, nbytes=most))


def search_plan(
    plan_for: Callable[[Search | None], Plan],
    search: Search | None,
    target: Target,
    donated: Collection[str],
) -> Plan:
    """Return the best plan that is found; what searches share is gone then.

    Args:
        plan_for: returns the plan of a search.
        search: what is asked for; None for no search.
        target: where the plan will run.
        donated: names of inputs that are given up.

    Raises:
        PlanError: no plan that is found keeps to the memory that is granted.
    """
    known = Known()
    search = search and replace(search, known=known)
    try:
        found = _plan_within(plan_for, search, donated)
        return _choose_by_timeline(found, plan_for, search, target, donated)
    finally:
        known.clear()


def _plan_within(
    plan_for: Callable[[Search | None], Plan], search: Search | None, donated: Collection[str]
) -> Plan:
    """Return the plan of a search, which keeps to the memory that is granted."""
    plan = plan_for(search)
    if search is None or search.memory is None or plan.search is None:
        return plan
    most, bound, granted = search.memory, plan.search, search.memory
    for _ in range(ROUNDS):
        over = plan.memory(donated=donated).peak - most
        if over <= 0 or plan.search is None:
            break
        granted = min(granted, plan.search.memory) - over
        if granted <= 0:
            break
        try:
            plan = plan_for(replace(search, memory=granted))
        except PlanError:
            break
    if plan.memory(donated=donated).peak > most:
        plan = plan_for(replace(search, objective=MEMORY, memory=None))
    peak = plan.memory(donated=donated)
    if peak.peak > most or plan.search is None:
        parts = sorted(peak.fullest.parts.items(), key=lambda part: -part[1])
        taken = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts[:LISTED] if size)
        raise PlanError(
            f"auto_partition finds no plan within {format_bytes(most)} a device: the least that it "
            f"finds is {format_bytes(peak.peak)} at {peak.fullest.at}, of which {taken}; give more "
            f"memory or devices, a smaller batch, or checkpointing"
        )
    return replace(plan, search=plan.search.against(bound))


def check_granted(plan: Plan, request: Request) -> None:
    """Raise where layers were cut into stages of which one holds more than was granted.

    Raises:
        PlanError: that is so.
    """
    found = request.searched
    if found is None or found.limit is None:
        return
    peak = plan.memory(donated=request.donated).peak
    if peak > found.limit:
        raise PlanError(
            f"auto_partition finds no stages within {format_bytes(found.limit)} a device: the "
            f"fullest one holds {format_bytes(peak)}; give more memory or stages, smaller "
            f"micro-batches, or checkpointing"
        )


def _choose_by_timeline(
    found: Plan,
    plan_for: Callable[[Search | None], Plan],
    search: Search | None,
    target: Target,
    donated: Collection[str],
) -> Plan:
    """Return the plan of a search, or a faster one that costs more one after another."""
    if search is None or found.search is None or not _is_timed(search, target):
        return found
    axes = sum(axis.size > 1 for axis in target.mesh.axes)
    tries = _list_tries(search, axes, found.search.variables)
    best, least = found, predict_timeline(found, target.hardware).seconds
    longest, share, seen = least, 0.0, [found]
    for hidden, spaces in tries:
        try:
            other = _plan_within(plan_for, replace(search, spaces=spaces, hidden=hidden), donated)
        except PlanError:  # there is none within the limits
            continue
        if any(other.stages is plan.stages for plan in seen):
            continue
        seen.append(other)
        seconds = predict_timeline(other, target.hardware).seconds
        if seconds < (1 - LEAST_GAIN) * least and not _is_too_large(other, found, donated):
            best, least, share = other, seconds, hidden
    if best is found or best.search is None:
        return found
    why = (
        f"a step takes {format_seconds(least)} by its timeline, found with {share:.0%} of what "
        f"nobody waits for taken to be hidden; what costs the least one after another takes "
        f"{format_seconds(longest)}"
    )
    in_turn = replace(best.search, cost=best.search.seconds / PICOSECOND)
    first = found.search
    if best.search.space == FULLY_SHARDED:  # has gradients go where they go in no other space
        first = replace(first, bound=min(first.bound, _find_bound(best.search, plan_for, search)))
    return replace(best, search=in_turn.against(first), notes=(*best.notes, why))


def _find_bound(
    hidden: SearchResult, plan_for: Callable[[Search | None], Plan], search: Search
) -> float:
    """Return what nothing costs less than one after another in the space of a result.

    What was left out of a cost only makes it less, so a bound without it is one, if a low one.
    """
    try:
        found = plan_for(replace(search, spaces=(hidden.space,))).search
    except PlanError:  # a search within limits ends, and may have met nothing
        return hidden.bound
    return hidden.bound if found is None else found.bound


def _list_tries(search: Search, axes: int, variables: int) -> list[tuple[float, tuple[str, ...]]]:
    """Return shares that are taken to be hidden, each with the spaces that are searched then."""
    much, little = HIDDEN
    own = [(share, search.spaces) for share in HIDDEN]
    batches, sharded = (much, (DATA,)), (much, (FULLY_SHARDED,))
    if MIXED not in search.spaces:
        return own
    if axes > AXES:
        return [batches, (little, (DATA,))]
    if variables > MANY:
        return [batches, sharded]
    return [*own, (TOGETHER, (DATA,)), batches, sharded]


def _is_too_large(other: Plan, found: Plan, donated: Collection[str]) -> bool:
    """Whether a plan does not fit a device where another one does."""
    return found.memory(donated=donated).fits and not other.memory(donated=donated).fits


def _is_timed(search: Search, target: Target) -> bool:
    """Whether a timeline tells more than the sum: devices that run in turn have nothing beside."""
    return (
        search.objective == THROUGHPUT
        and ANNOTATIONS not in search.spaces
        and not target.hardware.execution.in_turn
    )
