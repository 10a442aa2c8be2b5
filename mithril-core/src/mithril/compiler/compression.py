"""Compression among the passes: marks in the joint graph, then other sums in local programs.

Parameters that are gathered in fewer bits are here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mithril.compiler.compression_options import check_stateless
from mithril.compiler.request import PlanOptions, Request
from mithril.cost import Target
from mithril.ir import Graph
from mithril.ops.collective import class_of
from mithril.partition.compression import Compression, compress_gradients, mark_gradients
from mithril.partition.narrow_gathers import is_of_parameters, narrow_gathers
from mithril.plan import Collective, Plan, Program
from mithril.types import DType


def mark(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Graph:
    """Return the joint graph with the gradients marked that are to be compressed."""
    if request.cotangents is None or not options.compression.rules or target.mesh.size == 1:
        return graph
    placement = request.placement
    slices = placement.slices if placement is not None else ()
    known = dict.fromkeys(request.parameters)
    names = {name: name for name in known} | {part.name: part.stack for part in slices}
    trained = {name: names[name] for name in request.differentiated if name in names}
    if request.update is None:
        check_stateless(options.compression)
    return mark_gradients(graph, trained, options.compression, request.stacked)


def compress(program: Program, target: Target, options: PlanOptions) -> Program:
    """Return a local program with its marked gradients compressed."""
    hardware = target.within(program.mesh).hardware if program.mesh.devices else target.hardware
    return compress_gradients(program, options.compression, hardware)


def narrow(program: Program, request: Request, target: Target, options: PlanOptions) -> Program:
    """Return a local program that gathers what lies split in the dtype that was asked for."""
    hardware = target.within(program.mesh).hardware if program.mesh.devices else target.hardware
    parameters = (name for name in request.parameters if name in request.layouts)
    split = {name for name in parameters if request.layouts[name].is_brought}
    return narrow_gathers(program, split, options.gather, hardware)


def describe_compression(plan: Plan, asked: Compression) -> tuple[str, ...]:
    """Return what compression saves, for readers of a plan with gradients."""
    if not asked.rules:
        return ()
    rows = [row for row in plan.collectives() if row.cause.compressed]
    rows = [row for row in rows if not is_of_parameters(row.cause)]
    if not rows:
        return (
            f"{asked.said} compresses nothing: no such gradient is summed over devices in more "
            f"bytes than it would be compressed",
        )
    return (f"{asked.said}: of gradients {_describe_saving(plan, rows)}",)


def describe_gathers(plan: Plan, dtype: DType | None) -> tuple[str, ...]:
    """Return what gathers in fewer bits save, for readers of a plan.

    Args:
        plan: the plan.
        dtype: in which parameters at rest are gathered; None for their own.
    """
    if dtype is None:
        return ()
    rows = [row for row in plan.collectives() if is_of_parameters(row.cause)]
    said = f"gather_dtype='{dtype}'"
    if not rows:
        return (
            f"{said} changes nothing: no parameter that lies split is gathered in more bits; split "
            f"some with zero= or at_rest=",
        )
    return (f"{said}: of parameters {_describe_saving(plan, rows)}",)


def _describe_saving(plan: Plan, rows: Sequence[Collective]) -> str:
    """Return how many bytes a device sends in some collectives, and would without compression."""
    plain = sum(row.times * row.cause.plain_bytes for row in rows)
    sizes = dict(plan.mesh.sizes)
    for stage in plan.stages:  # which may have sub-axes
        sizes |= stage.program.mesh.sizes
    sent = 0.0
    for row in rows:
        group = prod(sizes[axis] for axis in row.axes)
        sent += row.times * class_of(row.kind).traffic(row.bytes, group).bytes
    return f"a device sends {round(sent)} bytes a step in place of {round(plain)}"


__all__ = ["compress", "describe_compression", "describe_gathers", "mark", "narrow"]
