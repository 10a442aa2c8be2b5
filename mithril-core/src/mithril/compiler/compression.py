"""Compression among the passes: marks in the joint graph, then other sums in local programs."""

from __future__ import annotations

from mithril.compiler.compression_options import check_stateless
from mithril.compiler.request import PlanOptions, Request
from mithril.cost import Target
from mithril.ir import Graph
from mithril.ops.collective import class_of
from mithril.partition.compression import Compression, compress_gradients, mark_gradients
from mithril.plan import Plan, Program


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


def describe_compression(plan: Plan, asked: Compression) -> tuple[str, ...]:
    """Return what compression saves, for readers of a plan with gradients."""
    if not asked.rules:
        return ()
    rows = [row for row in plan.collectives() if row.cause.compressed]
    if not rows:
        return (
            f"{asked.said} compresses nothing: no such gradient is summed over devices in more "
            f"bytes than it would be compressed",
        )
    plain = sum(row.times * row.cause.plain_bytes for row in rows)
    mesh = plan.mesh
    sizes = {axis: size for stage in plan.stages for axis, size in stage.program.mesh.sizes.items()}
    sent = 0.0
    for row in rows:
        group = 1
        for axis in row.axes:
            group *= sizes.get(axis) or mesh.axis_size(axis)
        sent += row.times * class_of(row.kind).traffic(row.bytes, group).bytes
    return (
        f"{asked.said}: of gradients a device sends {round(sent)} bytes a step in place of "
        f"{round(plain)}",
    )


__all__ = ["compress", "describe_compression", "mark"]
