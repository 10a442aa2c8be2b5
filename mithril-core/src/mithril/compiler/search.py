"""Plans that are searched for: within the memory that a user grants, and by their timelines.

A search knows what a device holds between phases; a plan knows its fullest moment. Where that is
above what was granted, the search is made again with as much less as it was above, a few times.
What is taken by its timeline is said in `mithril.compiler.faster_plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from mithril.compiler.faster_plan import choose_by_timeline
from mithril.compiler.request import PlanOptions, Request
from mithril.cost import Target
from mithril.errors import PlanError
from mithril.ir import Graph
from mithril.plan import Plan
from mithril.plan.names import cotangent_name
from mithril.sharding import MEMORY, Known, Search, find_experts, find_sequences
from mithril.units import format_bytes

ROUNDS = 6
"""So many searches are made at most."""
LISTED = 3
"""So many kinds of memory are named that take most."""


def complete(options: PlanOptions, graph: Graph, request: Request) -> PlanOptions:
    """Return options with a search that knows what the inputs of a graph are.

    Args:
        options: with what is searched for, if anything is.
        graph: the global graph.
        request: what is asked of the plan.
    """
    search = options.search
    if search is None:
        return options
    batches = frozenset(request.batches)
    cotangents = frozenset(map(cotangent_name, request.cotangents or ()))
    search = replace(
        search,
        batches=batches,
        cotangents=cotangents,
        parameters=frozenset(request.parameters),
        stacked=request.stacked,
        given_up=request.donated,
        experts=find_experts(graph, request.parameters),
        sequences=find_sequences(graph, batches | cotangents),
    )
    return replace(options, search=search)


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
    if search is None:
        return plan_for(None)
    known = Known()
    search = replace(search, known=known)

    def plan_within(search: Search) -> Plan:
        return _plan_within(plan_for, search, donated)

    try:
        return choose_by_timeline(plan_within(search), plan_within, search, target, donated)
    finally:
        known.clear()


def _plan_within(
    plan_for: Callable[[Search | None], Plan], search: Search, donated: Collection[str]
) -> Plan:
    """Return the plan of a search, which keeps to the memory that is granted."""
    plan = plan_for(search)
    if search.memory is None or plan.search is None:
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
