"""Products that are taken apart so that what they need, or make, travels beside them: in a plan.

With the strategy `decompose` every product is that can be, with `auto` those by which a step is
predicted to take less time; what travels in chunks is always chosen by that. An engine that orders
programs by itself, or overlaps nothing, gains nothing by the model, and is given what was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mithril.cost import Target
from mithril.cost.streams import Pricing
from mithril.ops.collective import Permute
from mithril.partition.decompose import (
    CHUNKS,
    RING,
    Known,
    cut_where_it_pays,
    decompose_all,
    decompose_where_it_pays,
)
from mithril.partition.overlap import Overlap
from mithril.partition.overlap.asked import AUTO, DECOMPOSE
from mithril.plan import Plan, Program


def decompose_plan(plan: Plan, target: Target, asked: Overlap) -> Plan:
    """Return a plan with all products taken apart, if that is asked for.

    Args:
        plan: before its collectives are placed.
        target: where it will run.
        asked: the strategy.
    """
    if asked.strategy != DECOMPOSE:
        return plan
    return change_programs(
        plan, lambda program, _: decompose_all(program, target.within(program.mesh).hardware)
    )


def choose_parts(plan: Plan, target: Target, pricings: Sequence[Pricing], asked: Overlap) -> Plan:
    """Return a plan with what is predicted to take less time in parts.

    Args:
        plan: before its collectives are placed.
        target: where it will run.
        pricings: of the programs of its stages.
        asked: what may be taken apart.
    """
    if asked.strategy == AUTO and Permute.name in target.capabilities:
        rings: Known = {}
        plan = change_programs(plan, lambda p, n: decompose_where_it_pays(p, pricings[n], rings))
    if asked.in_chunks:
        chunks: Known = {}
        plan = change_programs(plan, lambda p, n: cut_where_it_pays(p, pricings[n], chunks))
    return plan


def change_programs(plan: Plan, change: Callable[[Program, int], Program]) -> Plan:
    """Return a plan with other programs; the same plan if none changes.

    Args:
        plan: it stays as it is.
        change: takes the program of a stage and its number.
    """
    made = [change(stage.program, number) for number, stage in enumerate(plan.stages)]
    if all(new is stage.program for new, stage in zip(made, plan.stages, strict=True)):
        return plan
    pairs = zip(plan.stages, made, strict=True)
    return replace(plan, stages=tuple(replace(s, program=program) for s, program in pairs))


def count_apart(plan: Plan, name: str) -> int:
    """Return how many collectives travel in parts of a form.

    Args:
        plan: the plan.
        name: of the form, as steps of collectives have it.
    """
    steps = (row.cause.algorithm for row in plan.collectives())
    return sum(step is not None and step.name == name and step.step == 1 for step in steps)


def note_parts(plan: Plan, asked: Overlap, why: str = "", obstacle: str = "") -> Plan:
    """Return a plan that says so where nothing of what was asked for travels in parts.

    Args:
        plan: after all passes over its programs.
        asked: what was asked for.
        why: nothing does that could.
        obstacle: where, and why, nothing would be gained by it.
    """
    notes = []
    if asked.strategy == DECOMPOSE and asked.said and not count_apart(plan, RING):
        reason = why or "no product takes what is gathered, or makes what is scattered"
        notes.append(f"{asked.said} decomposes nothing in this plan: {reason}")
    if asked.said_of_chunks and not count_apart(plan, CHUNKS):
        reason = why or "no collective is predicted to take less time in chunks"
        place = obstacle or f"in this plan: {reason}"
        notes.append(f"{asked.said_of_chunks} changes nothing {place}")
    return replace(plan, notes=(*plan.notes, *notes)) if notes else plan


__all__ = ["choose_parts", "count_apart", "decompose_plan", "note_parts"]
