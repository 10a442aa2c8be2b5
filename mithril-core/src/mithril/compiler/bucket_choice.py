"""Chooses how buckets of what is gathered and scattered are sized: as the plan is predicted faster.

A bucket by the time model is right for a link, but does not see what else a plan decides: that a
gather starts one block ahead, and that memory limits what comes early. A bucket whose start-up is a
small part of its time is often a block. So both plans are made, and the faster one is taken; where
buckets are the same either way, there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mithril.compiler.request import PlanOptions
from mithril.cost import Target, predict_timeline
from mithril.ir.rewrite import is_alike
from mithril.ops.collective import AllGather, ReduceScatter
from mithril.plan import Plan

SIZED = (AllGather.name, ReduceScatter.name)
LEAST_GAIN = 0.02
"""The part of a step's time that buckets by the time model have to save: they are seldom blocks."""

MOST = 200
"""Programs of more such collectives are planned once: their layers would be better in a loop."""


def choose_buckets(
    draft: Callable[[PlanOptions], Plan],
    place: Callable[[Plan], Plan],
    target: Target,
    options: PlanOptions,
) -> Plan:
    """Return a plan whose buckets are sized in the way with which a step takes less time.

    With a memory budget, and in long programs, they are as small as start-ups allow.

    Args:
        draft: returns a plan, with every collective where its result is first needed.
        place: returns such a plan with every collective where it starts.
        target: where it will run.
        options: of the passes.
    """
    plan = draft(options)
    fusion = options.fusion
    is_timed = target.hardware.hides_collectives and fusion.nbytes is None
    count = sum(row.kind in SIZED for row in plan.collectives())
    if not is_timed or not fusion.others or not 2 <= count <= MOST or plan.policy is not None:
        return place(plan)
    other = draft(replace(options, fusion=replace(fusion, by_time=True)))
    if _has_same_programs(plan, other):
        return place(plan)
    plan, other = place(plan), place(other)
    seconds = [predict_timeline(one, target.hardware).seconds for one in (plan, other)]
    return other if seconds[1] < (1 - LEAST_GAIN) * seconds[0] else plan


def _has_same_programs(one: Plan, other: Plan) -> bool:
    programs = ([stage.program.graph for stage in plan.stages] for plan in (one, other))
    return all(map(is_alike, *programs))


__all__ = ["choose_buckets"]
