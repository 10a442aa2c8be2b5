"""Say in words why a plan moves what it moves, and why a tensor lies as it does."""

from __future__ import annotations

from mithril.errors import PlanError, nearest
from mithril.plan import Collective, Plan
from mithril.plan.printer import over, times_of
from mithril.transform import gradient_of


def explain(plan: Plan, tensor: str | None = None) -> str:
    """Return the reasons for every collective of a plan, or for the sharding of one tensor.

    Args:
        plan: the plan.
        tensor: name of a parameter, input, output or layer output; None for all collectives.

    Raises:
        PlanError: the plan knows no tensor of that name.
    """
    if tensor is not None:
        return _explain_tensor(plan, tensor)
    rows = plan.collectives()
    lines = [f"{plan.mesh!r}: {len(rows)} collectives", *map(_note, plan.notes)]
    for number, row in enumerate(rows, start=1):
        lines += _explain_row(number, row)
    return "\n".join(lines)


def _note(note: str) -> str:
    return f"note: {note}"


def _explain_row(number: int, row: Collective) -> list[str]:
    cause = row.cause
    place = " ".join(part for part in (row.scope, f"({row.source})" if row.source else "") if part)
    lines = [
        f"{number}. {over(row)}{times_of(row)}, {row.bytes} bytes, "
        f"{cause.seconds * 1e6:.1f} us predicted, {row.phase}",
        f"     value     {cause.value}" + (f" from {place}" if place else ""),
        f"     produced  {cause.produced}",
        f"     required  {cause.required} by {cause.consumer}",
    ]
    if cause.emulated:
        lines.append(f"     emulated: {cause.emulated}")
    if cause.parts:
        lines.append(f"     carries   {', '.join(cause.parts)}")
    lines += [f"     instead   {other.option}: {_more(other.seconds)}" for other in cause.instead]
    if not cause.instead and not cause.parts:
        lines.append("     instead   nothing: the shardings that are given leave no other way")
    return lines


def _more(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us more" if seconds >= 0 else f"{-seconds * 1e6:.1f} us less here"


def _explain_tensor(plan: Plan, tensor: str) -> str:
    report = plan.specs.get(tensor)
    if report is None:
        known = ", ".join(sorted(plan.specs))
        raise PlanError(
            f"plan knows no tensor '{tensor}'{nearest(tensor, plan.specs)}; known: {known}"
        )
    local = report.sharding.local_shape(report.type.shape)
    devices = report.sharding.mesh.devices
    where = f"devices {', '.join(map(str, devices))}" if devices else "each device"
    lines = [
        f"{tensor}: {report.type}, {report.sharding.describe()}, {local} on {where}",
        f"  decided by {report.decided_by}",
    ]
    names = {tensor, gradient_of(tensor)}
    moves = (r for r in plan.collectives() if names & {r.cause.value, *r.cause.parts})
    lines += [f"  {over(r)}, {r.bytes} bytes, {r.phase}: {r.cause.value}" for r in moves]
    return "\n".join(lines)
