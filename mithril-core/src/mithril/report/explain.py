"""Say in words why a plan moves what it moves, and why a tensor lies as it does.

Predicted times are shown only where the profile that priced the plan describes the devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from mithril.errors import OptionError, PlanError, nearest
from mithril.ir import Alternative, Cause
from mithril.plan import Collective, Plan, Pricing
from mithril.plan.printer import consumer_of, over, times_of
from mithril.transform import gradient_of


def explain(plan: Plan, tensor: str | None = None) -> str:
    """Return the reasons for every collective of a plan, or for the sharding of one tensor.

    Args:
        plan: the plan.
        tensor: name of a parameter, input, output or layer output; None for all collectives.

    Raises:
        OptionError: it is no name.
        PlanError: the plan knows no tensor of that name.
    """
    check_name(tensor, plan.outputs[0].name)
    if tensor is not None:
        return _explain_tensor(plan, tensor)
    rows, is_timed = plan.collectives(), _is_timed(plan.pricing)
    lines = [f"{plan.mesh!r}: {len(rows)} collectives", *_pricing(plan.pricing)]
    lines += [f"note: {note}" for note in plan.notes]
    lines += [] if plan.policy is None else plan.policy.lines()
    lines += [] if plan.search is None else plan.search.lines()
    for number, row in enumerate(rows, start=1):
        lines += _explain_row(number, row, is_timed)
    return "\n".join(lines)


def check_name(tensor: object, example: str) -> None:
    """Raise unless something is the name of a tensor, or None.

    Args:
        tensor: what is explained.
        example: a name that there is, for the message.

    Raises:
        OptionError: it is something else.
    """
    if tensor is not None and not isinstance(tensor, str):
        raise OptionError(
            f"explain() takes the name of a tensor, not {tensor!r}; give one, such as "
            f"'{example}', or none"
        )


def _is_timed(pricing: Pricing | None) -> bool:
    return pricing is not None and not pricing.unknown_platform


def _pricing(pricing: Pricing | None) -> Iterator[str]:
    """Yield what priced a plan."""
    if pricing is None:
        return
    line = f"priced with profile '{pricing.profile}'"
    if pricing.unknown_platform:
        line += f", since none describes '{pricing.unknown_platform}'; no times are predicted"
    yield line


def _explain_row(number: int, row: Collective, is_timed: bool) -> list[str]:
    cause = row.cause
    place = " ".join(part for part in (row.scope, f"({row.source})" if row.source else "") if part)
    time = f"{cause.seconds * 1e6:.1f} us predicted, " if is_timed else ""
    lines = [
        f"{number}. {over(row)}{times_of(row)}, {row.bytes} bytes, {time}{row.phase}",
        f"     value     {cause.value}" + (f" from {place}" if place else ""),
        f"     produced  {cause.produced}",
        f"     required  {cause.required} by {consumer_of(row)}",
    ]
    if cause.hidden is not None and is_timed:
        lines.append(f"     hidden    {_describe_hiding(cause)}")
    if cause.algorithm is not None:
        whole = cause.algorithm
        lines.append(f"     algorithm {whole} of {sum(whole.bytes)} bytes")
    if cause.compressed:
        lines.append(f"     compressed {cause.compressed}")
    if cause.emulated:
        lines.append(f"     emulated: {cause.emulated}")
    if cause.parts:
        lines.append(f"     carries   {', '.join(cause.parts)}")
    lines += [f"     instead   {_alternative(other, is_timed)}" for other in cause.instead]
    if not cause.instead and not cause.parts:
        reason = cause.wholeness or "the shardings that are given leave no other way"
        lines.append(f"     instead   nothing: {reason}")
    return lines


def _describe_hiding(cause: Cause) -> str:
    """Return how much of a collective goes on beside what computes, and beside what."""
    hidden = cause.hidden or 0.0
    if not cause.behind:
        return "nothing: it is waited for while nothing is computed"
    return f"{hidden * 1e6:.1f} us of it, behind {', '.join(cause.behind)}"


def _alternative(other: Alternative, is_timed: bool) -> str:
    if not is_timed:
        return other.option
    time, than = abs(other.seconds * 1e6), "more" if other.seconds >= 0 else "less here"
    return f"{other.option}: {time:.1f} us {than}"


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
