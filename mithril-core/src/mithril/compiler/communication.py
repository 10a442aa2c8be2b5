"""What the passes over communication did to a plan, for its readers: one note for each option."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mithril.compiler.compression import describe_compression, describe_gathers
from mithril.compiler.request import PlanOptions
from mithril.partition.algorithms import Algorithms
from mithril.partition.decompose import CHUNKS, RING
from mithril.plan import Plan
from mithril.plan.program import Collective


def note_communication(plan: Plan, options: PlanOptions, *, has_gradients: bool) -> Plan:
    """Return a plan with notes of what the passes over communication did, as far as asked for.

    Args:
        plan: after all of them.
        options: that asked for them.
        has_gradients: whether the plan computes any.
    """
    notes = [
        *_describe_algorithms(plan, options.algorithms),
        *_describe_all(plan, options.optimization),
        *describe_gathers(plan, options.gather),
        *(describe_compression(plan, options.compression) if has_gradients else ()),
    ]
    return replace(plan, notes=(*plan.notes, *notes))


def _describe_algorithms(plan: Plan, asked: Algorithms) -> Iterator[str]:
    """Yield why what was asked for changes nothing in a plan, if it does not."""
    if not asked.of:
        return
    rows = plan.collectives()
    if any(row.cause.algorithm and not _has_algorithm(row, RING, CHUNKS) for row in rows):
        return
    own = any(row.kind in asked.of for row in rows)
    why = (
        "the backend's own collectives are predicted to take least time, or are all that devices "
        "along these axes can do"
        if own
        else "it exchanges nothing by such collectives"
    )
    yield f"{asked.said} changes nothing in this plan: {why}"


def _describe_all(plan: Plan, said: str) -> Iterator[str]:
    """Yield what all passes did, where one option asked for them."""
    if said:
        done = ", ".join(_describe(plan)) or "the plan communicates as little without them"
        yield f"{said}: {done}"


def _describe(plan: Plan) -> Iterator[str]:
    rows = [row for row in plan.collectives() if _is_first_step(row)]
    if not rows:
        yield "nothing is communicated"
        return
    buffers = [row for row in rows if row.cause.parts]
    if buffers:
        count = sum(len(row.cause.parts) for row in buffers)
        yield f"fusion has {count} values travel in {len(buffers)} of {len(rows)} collectives"
    else:
        yield f"fusion leaves {len(rows)} collectives as they are"
    if any(row.cause.hidden is not None for row in rows):
        hidden = sum(bool(row.cause.hidden) for row in rows)
        yield f"overlap has {hidden} of {len(rows)} go on beside what computes"
    in_parts = sum(_has_algorithm(row, RING, CHUNKS) for row in rows)
    if in_parts:
        yield f"{in_parts} of {len(rows)} travel in parts beside what computes with them"
    changed = sum(row.cause.algorithm is not None for row in rows) - in_parts
    if changed:
        yield f"algorithms carry {changed} of {len(rows)} out otherwise than the backend"


def _has_algorithm(row: Collective, *names: str) -> bool:
    return row.cause.algorithm is not None and row.cause.algorithm.name in names


def _is_first_step(row: Collective) -> bool:
    """Return whether a row is a collective of its own, or the first step of one."""
    return row.cause.algorithm is None or row.cause.algorithm.step == 1


__all__ = ["note_communication"]
