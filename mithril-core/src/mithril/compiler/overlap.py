"""The placing of collectives among the passes: within the memory that a plan may take.

Programs are placed one by one. If the plan then takes more memory than it was given, they are
placed again with less room, and in the end stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from mithril.cost import Target, predict_memory
from mithril.cost.kernels import OpCosts
from mithril.cost.liveness import Liveness
from mithril.errors import OptionError
from mithril.ir import Node
from mithril.ir.rewrite import all_nodes
from mithril.ops.collective import collective_of
from mithril.partition.overlap import Overlap, keep_collectives, place_collectives
from mithril.partition.overlap.asked import NONE
from mithril.plan import Plan, Program

PARTS_OF_ROOM = (1.0, 0.5, 0.25, 0.0)
"""How much of what is free the results that come early may take, one trial after another."""

_Room = Callable[[Program], list[int]]
"""Returns for each node of a program the bytes that are free while it runs."""


def place_in_plan(plan: Plan, target: Target, asked: Overlap, donated: Collection[str]) -> Plan:
    """Return a plan whose collectives start, and are waited for, where a step takes least time.

    A memory budget of the plan, and what a device is known to hold, are kept to. Where neither is
    known, and nobody asks for overlap, the plan takes no more memory than without.

    Args:
        plan: with every collective where its result is first needed.
        target: where it will run.
        asked: how they shall be placed.
        donated: inputs that are given up.

    Raises:
        OptionError: it is asked that nothing overlaps where the engine decides that.
    """
    if not any(_list_exchanges(stage.program) for stage in plan.stages):
        return plan
    execution = target.hardware.execution
    if execution.schedules or execution.in_turn or not execution.overlaps:
        return _with_note(plan, target, asked)
    costs = OpCosts()
    placed = _place(plan, target, asked, costs)
    limit = _find_limit(plan, target)
    if limit is None and not asked.said:
        limit = _find_peak(plan, target, donated)
    if limit is not None and _find_peak(placed, target, donated) > limit:
        placed = _place_within(plan, target, asked, costs, limit, donated)
    return placed


def _list_exchanges(program: Program) -> list[Node]:
    return [node for node in all_nodes(program.graph) if collective_of(node.op) is not None]


def _find_peak(plan: Plan, target: Target, donated: Collection[str]) -> int:
    return predict_memory(plan, target.hardware, donated).peak


def _find_limit(plan: Plan, target: Target) -> int | None:
    """Return the bytes that a device may hold, as far as that is known."""
    budget = None if plan.policy is None else plan.policy.budget
    known = [size for size in (budget, target.hardware.memory_bytes) if size is not None]
    return min(known, default=None)


def _place(
    plan: Plan, target: Target, asked: Overlap, costs: OpCosts, room: _Room | None = None
) -> Plan:
    stages = []
    for stage in plan.stages:
        own = target.within(stage.program.mesh).hardware
        free = None if room is None else room(stage.program)
        placed = place_collectives(stage.program, own, asked, costs, free)
        stages.append(replace(stage, program=placed))
    return replace(plan, stages=tuple(stages))


def _place_within(
    plan: Plan,
    target: Target,
    asked: Overlap,
    costs: OpCosts,
    limit: int,
    donated: Collection[str],
) -> Plan:
    """Return a placed plan that holds no more than a limit, or else that which holds the least."""
    before = _find_peak(plan, target, donated)
    liveness = Liveness(target.hardware.execution)
    for part in PARTS_OF_ROOM:

        def list_room(program: Program, part: float = part) -> list[int]:
            memory = liveness.measure(program.graph)
            free = limit - before + memory.peak
            return [int(part * (free - size)) for size in memory.curve]

        placed = _place(plan, target, asked, costs, list_room)
        if _find_peak(placed, target, donated) <= limit:
            return placed
    # What is waited for at once is in memory for the shortest time.
    waiting = _place(plan, target, replace(asked, strategy=NONE), costs)
    plans = (_keep(plan, target, costs), waiting)
    return min(plans, key=lambda found: _find_peak(found, target, donated))


def _with_note(plan: Plan, target: Target, asked: Overlap) -> Plan:
    """Return a plan that says why what was asked for has no effect.

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
    if execution.schedules:
        why = "it decides by itself where collectives start and end"
    elif execution.in_turn:
        why = "its devices compute one after the other"
    else:
        why = "a program waits for each collective where it is issued"
    note = f"{asked.said} changes nothing on backend '{name}': {why}"
    return replace(plan, notes=(*plan.notes, note))


def _keep(plan: Plan, target: Target, costs: OpCosts) -> Plan:
    """Return a plan with its collectives where they are."""
    stages = []
    for stage in plan.stages:
        own = target.within(stage.program.mesh).hardware
        stages.append(replace(stage, program=keep_collectives(stage.program, own, costs)))
    return replace(plan, stages=tuple(stages))


__all__ = ["place_in_plan"]
