"""What a plan must keep to: what its target offers, and limits that a user sets."""

from __future__ import annotations

from collections.abc import Collection

from mithril.cost import Target
from mithril.cost.remedies import describe_shortage
from mithril.errors import BackendError, PlanError, listing, warn
from mithril.ir import Phase
from mithril.ir.rewrite import all_nodes
from mithril.ops.collective import SEND, collective_of, collectives
from mithril.ops.host import ToHost, verify_host
from mithril.partition.offload import Offload
from mithril.plan import Plan
from mithril.types import DType

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


def check_dtypes(plan: Plan, backend: str, dtypes: Collection[DType]) -> None:
    """Raise unless a backend can hold every value of a plan.

    Args:
        plan: the plan.
        backend: its name.
        dtypes: that it can hold.

    Raises:
        BackendError: a value has another dtype; the message names the layer and the line.
    """
    for stage in plan.stages:
        for node in all_nodes(stage.program.graph):
            for value in node.outputs:
                if value.type.dtype not in dtypes:
                    place = f" at {node.where()}" if node.scope or node.source else ""
                    raise BackendError(
                        f"op '{node.op.name}'{place} makes {value.type}, and backend '{backend}' "
                        f"has no dtype {value.type.dtype}; it has {listing(sorted(dtypes))}; use "
                        f"another dtype or layer there, or another backend"
                    )
        for port in stage.program.inputs:
            if port.type.dtype not in dtypes:
                raise BackendError(
                    f"plan takes '{port.name}' as {port.type}, and backend '{backend}' has no "
                    f"dtype {port.type.dtype}; it has {listing(sorted(dtypes))}; cast it before"
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
    for node in (node for stage in plan.stages for node in all_nodes(stage.program.graph)):
        op, cause = collective_of(node.op), node.cause
        if op is None or cause is None or cause.is_asked:
            continue
        whole = cause.algorithm  # which of several steps this is, of what the plan moves
        kind, sizes = op.name, [op.count_bytes([value.type]) for value in node.inputs]
        if whole is not None:
            kind, sizes = whole.kind, list(whole.bytes) if whole.step == 1 else []
        if kind not in HIDDEN:
            continue
        names = cause.parts or [cause.value]  # of a bucket, each has its own reason
        for name, nbytes in zip(names, sizes, strict=bool(sizes)):
            if name not in declared and nbytes > max_reshard_bytes:
                place = f" ({node.source})" if node.source else ""
                raise PlanError(
                    f"plan moves '{name}'{place} by {kind} over "
                    f"{' x '.join(plan.mesh.join_axes(op.axes))}, from {cause.produced} to "
                    f"{cause.required} for {cause.consumer}; {nbytes} bytes, more than "
                    f"max_reshard_bytes={max_reshard_bytes}; split the two alike, or raise the "
                    f"limit"
                )


def check_host_arena(plan: Plan, wanted: Offload, *, has_backward: bool) -> None:
    """Raise unless what shall be on the host is there, and nothing computes with it there.

    Args:
        plan: the plan.
        wanted: what shall be there.
        has_backward: whether the plan computes gradients.

    Raises:
        GraphError: something computes with what lies in the host arena.
        PlanError: no activation is large enough to go there.
    """
    for stage in plan.stages:
        verify_host(stage.program.graph)
    if wanted.threshold is None or not has_backward:
        return
    nodes = (node for stage in plan.stages for node in all_nodes(stage.program.graph))
    if not any(isinstance(node.op, ToHost) and node.phase == Phase.forward for node in nodes):
        raise PlanError(
            f"activation_offload finds nothing to offload: no activation that the backward needs "
            f"has more than offload_threshold={wanted.threshold} elements on a device; give a "
            f"smaller offload_threshold, or leave it out"
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
        PlanError: it is strict, and a device has too little, or it is not known what it has.
    """
    if target.hardware.memory_bytes is None:
        if is_strict:
            raise PlanError(
                f"strict_memory=True has nothing to compare with: profile "
                f"'{target.hardware.name}' does not say what memory a device has; give hardware= "
                f"one that does, or leave it out"
            )
        return
    memory = plan.memory(donated=donated)
    if memory.fits:
        return
    text = describe_shortage(plan, memory, target.hardware)
    if is_strict:
        raise PlanError(text)
    warn(text)
