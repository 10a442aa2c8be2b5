"""What the passes over communication did to a plan, where an option asked for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mithril.partition.decompose import CHUNKS, RING
from mithril.plan import Plan
from mithril.plan.program import Collective


def tell_optimization(plan: Plan, said: str) -> Plan:
    """Return a plan with a note of what the passes over communication did.

    Args:
        plan: after all of them.
        said: the option that asked for them; empty where none did, and nothing is noted.
    """
    if not said:
        return plan
    done = ", ".join(_describe(plan)) or "the plan communicates as little without them"
    return replace(plan, notes=(*plan.notes, f"{said}: {done}"))


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


__all__ = ["tell_optimization"]
