"""What a plan must keep to: what its target offers, and limits that a user sets."""

from __future__ import annotations

from collections.abc import Collection

from mithril.cost import Target
from mithril.cost.remedies import describe_shortage
from mithril.errors import BackendError, PlanError, warn
from mithril.ops.collective import SEND, collectives
from mithril.plan import Plan

HIDDEN = frozenset(kind for kind, op in collectives().items() if not op.reduces)
"""Moves that reduce nothing: two shardings did not fit together."""


def check_capabilities(plan: Plan, target: Target) -> None:
    """Raise unless the target offers every collective of a plan.

    Raises:
        BackendError: it lacks one.
    """
    for row in plan.collectives():
        if row.kind not in target.capabilities and row.kind != SEND:
            raise BackendError(
                f"backend '{target.backend}' has no {row.kind}, and {row.cause.value} needs one "
                f"over {' x '.join(row.axes)}; split it otherwise, or use another backend"
            )


def check_moves(plan: Plan, max_reshard_bytes: int, declared: Collection[str] = ()) -> None:
    """Raise unless every hidden move of a plan is small enough.

    Args:
        plan: the plan.
        max_reshard_bytes: the largest move allowed, in bytes per device and execution.
        declared: tensors whose moves the user asked for, such as those kept at rest.

    Raises:
        PlanError: a move is larger; the message names it and its reason.
    """
    for row in plan.collectives():
        cause = row.cause
        if cause.is_asked or cause.value in declared:
            continue
        if row.kind in HIDDEN and row.bytes > max_reshard_bytes:
            place = f" ({row.source})" if row.source else ""
            raise PlanError(
                f"plan moves '{cause.value}'{place} by {row.kind} over {' x '.join(row.axes)}, "
                f"from {cause.produced} to {cause.required} for {cause.consumer}; {row.bytes} "
                f"bytes, more than max_reshard_bytes={max_reshard_bytes}; split the two alike, or "
                f"raise the limit"
            )


def check_memory(
    plan: Plan, target: Target, donated: Collection[str] = (), *, is_strict: bool = False
) -> None:
    """Warn if a plan needs more memory than a device has, where that is known.

    Args:
        plan: the plan.
        target: where it will run.
        donated: names of inputs that are given up.
        is_strict: whether it is refused instead.

    Raises:
        PlanError: it is strict, and a device has too little.
    """
    if target.hardware.memory_bytes is None:
        return
    memory = plan.memory(donated=donated)
    if memory.fits:
        return
    text = describe_shortage(plan, memory, target.hardware)
    if is_strict:
        raise PlanError(text)
    warn(text)
