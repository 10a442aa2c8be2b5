"""The placing of collectives among the passes: within the memory that a plan may take.

Programs are placed one by one. If the plan then takes more memory than it was given, they are
placed again with less room, and in the end stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from mithril.compiler.decompose import (
    choose_parts,
    count_apart,
    decompose_plan,
    note_parts,
)
from mithril.cost import Target, predict_timeline
from mithril.cost.kernels import OpCosts
from mithril.cost.liveness import Liveness
from mithril.cost.streams import Pricing
from mithril.errors import OptionError
from mithril.ir.rewrite import communicates
from mithril.partition.decompose import RING
from mithril.partition.overlap import (
    Overlap,
    defer_results,
    keep_collectives,
    place_collectives,
)
from mithril.partition.overlap.asked import DECOMPOSE, NONE
from mithril.plan import Execution, Plan, Program

PARTS_OF_ROOM = (1.0, 0.5, 0.25, 0.0)
"""How much of what is free the results that come early may take, one trial after another."""
MEMORY_SLACK = 1e-3
"""The part of its memory that overlap may cost though nobody asks: a loss, say, lives longer."""

_FindPeak = Callable[[Plan], int]
"""Returns the bytes that the fullest device holds."""


def place_in_plan(plan: Plan, target: Target, asked: Overlap, donated: Collection[str]) -> Plan:
    """Return a plan whose collectives start, and are waited for, where a step takes least time.

    A memory budget of the plan, and what a device is known to hold, are kept to. Where neither is
    known, and nobody asks for overlap, the plan takes hardly more memory than without.

    Args:
        plan: with every collective where its result is first needed.
        target: where it will run.
        asked: how they shall be placed.
        donated: inputs that are given up.

    Raises:
        OptionError: it is asked that nothing overlaps where the engine decides that.
    """
    if not any(communicates(stage.program.graph) for stage in plan.stages):
        return note_parts(plan, asked)
    whole, plan = plan, decompose_plan(plan, target, asked)
    execution = target.hardware.execution
    if (why := _find_obstacle(execution)) is not None:
        obstacle = f"on backend '{target.backend}': {why}"
        return note_parts(_with_note(plan, target, asked, why), asked, obstacle=obstacle)

    costs = OpCosts()
    pricings = [Pricing(s.program.mesh, target.hardware, costs) for s in plan.stages]
    if asked.strategy == NONE:
        return _place(plan, pricings, asked)

    def find_peak(plan: Plan) -> int:
        peak: int = plan.memory(donated=donated).peak
        return peak

    limit = _find_limit(plan, target)
    if limit is None and not asked.said and not asked.said_of_chunks:
        limit = int((1 + MEMORY_SLACK) * find_peak(plan))
    candidates = dict.fromkeys((choose_parts(plan, target, pricings, asked), plan))
    for placed in _sort_by_time([_place(one, pricings, asked) for one in candidates], target):
        if limit is None or find_peak(placed) <= limit:
            return note_parts(placed, asked)
    assert limit is not None, "without a limit the first is taken"
    liveness, why = Liveness(execution), "in parts it needs more memory than it may take"
    placed = _place_within(plan, pricings, asked, limit, liveness, find_peak)
    if plan is not whole and find_peak(placed) > limit:
        placed = _place_within(whole, pricings, asked, limit, liveness, find_peak)
    return note_parts(placed, asked, why)


def wait_at_once(plan: Plan, target: Target, asked: Overlap) -> Plan:
    """Return a plan that waits for each collective where it is issued, if the plan says where.

    That is what `place_in_plan` falls back on within a limit: what is waited for at once is in
    memory for the shortest time.

    Args:
        plan: with every collective where its result is first needed.
        target: where it will run.
        asked: how collectives shall be placed.
    """
    if _find_obstacle(target.hardware.execution) is not None:
        return plan
    costs = OpCosts()
    pricings = [Pricing(s.program.mesh, target.hardware, costs) for s in plan.stages]
    return _place(plan, pricings, replace(asked, strategy=NONE))


def _sort_by_time(plans: Sequence[Plan], target: Target) -> Sequence[Plan]:
    """Return plans, the fastest one first: parts are chosen before anything is placed."""
    if len(plans) == 1:
        return plans
    return sorted(plans, key=lambda plan: predict_timeline(plan, target.hardware).seconds)


def _find_limit(plan: Plan, target: Target) -> int | None:
    """Return the bytes that a device may hold, as far as that is known."""
    budget = None if plan.policy is None else plan.policy.budget
    known = [size for size in (budget, target.hardware.memory_bytes) if size is not None]
    return min(known, default=None)


def _place(
    plan: Plan,
    pricings: Sequence[Pricing],
    asked: Overlap,
    rooms: Iterable[Sequence[int] | None] | None = None,
) -> Plan:
    """Return a plan with its programs placed, each in its room."""
    parts = zip(plan.stages, pricings, rooms or [None] * len(pricings), strict=True)
    placed = (place_collectives(s.program, pricing, asked, room) for s, pricing, room in parts)
    return _with_programs(plan, placed)


def _with_programs(plan: Plan, programs: Iterable[Program]) -> Plan:
    pairs = zip(plan.stages, programs, strict=True)
    return replace(plan, stages=tuple(replace(s, program=program) for s, program in pairs))


def _place_within(
    plan: Plan,
    pricings: Sequence[Pricing],
    asked: Overlap,
    limit: int,
    liveness: Liveness,
    find_peak: _FindPeak,
) -> Plan:
    """Return a placed plan that holds no more than a limit, or else that which holds the least."""
    plan = _defer_within(plan, pricings, limit, find_peak)
    left = limit - find_peak(plan)
    memories = [liveness.measure(stage.program.graph) for stage in plan.stages]
    free = [[left + memory.peak - size for size in memory.curve] for memory in memories]
    for part in PARTS_OF_ROOM:
        placed = _place(plan, pricings, asked, [[int(part * b) for b in room] for room in free])
        if find_peak(placed) <= limit:
            return placed
    kept = (keep_collectives(s.program, p) for s, p in zip(plan.stages, pricings, strict=True))
    # What is waited for at once is in memory for the shortest time.
    waiting = _place(plan, pricings, replace(asked, strategy=NONE))
    return min(_with_programs(plan, kept), waiting, key=find_peak)


def _defer_within(
    plan: Plan, pricings: Sequence[Pricing], limit: int, find_peak: _FindPeak
) -> Plan:
    """Return a plan in which what only results wait for is done last, if a limit allows that."""
    parts = zip(plan.stages, pricings, strict=True)
    deferred = _with_programs(plan, (defer_results(s.program, p) for s, p in parts))
    return deferred if find_peak(deferred) <= limit else plan


def _find_obstacle(execution: Execution) -> str | None:
    """Return why a plan does not say where collectives start; None where it does."""
    if execution.schedules:
        return "it decides by itself where collectives start and end"
    if execution.in_turn:
        return "its devices compute one after the other"
    return None if execution.overlaps else "a program waits for each collective where it is issued"


def _with_note(plan: Plan, target: Target, asked: Overlap, why: str) -> Plan:
    """Return a plan that says why what was asked for has no effect, or no more than it has.

    Raises:
        OptionError: it is asked that nothing overlaps, and the engine may do it all the same.
    """
    if not asked.said:
        return plan
    execution, name = target.hardware.execution, target.backend
    if execution.schedules and execution.overlaps and asked.strategy == NONE:
        raise OptionError(
            f"{asked.said} is not available on backend '{name}', which decides by itself what goes "
            f"on beside what; leave it out"
        )
    if asked.strategy != DECOMPOSE:
        note = f"{asked.said} changes nothing on backend '{name}': {why}"
    elif count := count_apart(plan, RING):
        note = f"{asked.said} has {count} collectives travel in parts on backend '{name}'; {why}"
    else:
        return plan
    return replace(plan, notes=(*plan.notes, note))


__all__ = ["place_in_plan", "wait_at_once"]
