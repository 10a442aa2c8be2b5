"""Partition one graph over one mesh: find candidates, choose among them, make the local program."""

from __future__ import annotations

from collections.abc import Container

from mithril.compiler.request import Request
from mithril.cost import Hardware
from mithril.ir import Graph, Value
from mithril.ir.rewrite import regions
from mithril.mesh import Mesh, common, refine
from mithril.partition.spmd import localise
from mithril.plan import Program, TensorReport
from mithril.plan.proof import check_promises
from mithril.sharding import (
    Candidates,
    Choice,
    Constraints,
    Resharder,
    choose,
    collect,
    find_constraints,
)
from mithril.transform import expand_nodes

COMPUTED_WITH = "the sharding it is computed with"
"""Who decided where an array lies that the plan was free to place."""


def choose_shardings(
    graph: Graph, mesh: Mesh, request: Request, kernels: Container[str], hardware: Hardware
) -> tuple[Graph, Constraints, Choice]:
    """Return the graph, expanded where that was needed, what is given, and the choice.

    Args:
        graph: forward, and backward where gradients are wanted.
        mesh: the devices.
        request: shardings given.
        kernels: names of the ops the engine runs itself.
        hardware: the profile that prices the choices.
    """
    graph, given, candidates = open_candidates(graph, mesh, request, kernels)
    resharder = Resharder(given.mesh, hardware, given.pads)
    return graph, given, choose(graph, given, candidates, resharder, hardware)


def local_program(graph: Graph, given: Constraints, choice: Choice, hardware: Hardware) -> Program:
    """Return the program every device runs."""
    resharder = Resharder(given.mesh, hardware, given.pads)
    program = localise(graph, given, choice, resharder)
    check_promises(program)
    return program


def open_candidates(
    graph: Graph, mesh: Mesh, request: Request, kernels: Container[str]
) -> tuple[Graph, Constraints, Candidates]:
    """Return the graph and the constraints after what stood in the way is gone, and candidates.

    Fused ops are expanded whose dimension shall be split (the cross-entropy of a split vocabulary,
    say), and mesh axes are cut into sub-axes where a factor is smaller than its axis (key and value
    heads, say) or where the user laid out a tensor on another factorisation of the devices.
    """
    finer = common([mesh, *request.meshes()])
    while True:
        given = find_constraints(graph, finer, request.layouts, request.pads)
        candidates = collect(graph, given)
        if candidates.expandable:
            graph = expand_nodes(graph, candidates.expandable, kernels)
        elif candidates.cuts:
            cut = (refine(mesh, {axis: sizes}) for axis, sizes in candidates.cuts.items())
            finer = common([finer, *cut])
        else:
            return graph, given, candidates


def reports_of(
    graph: Graph, choice: Choice, given: Constraints, request: Request
) -> dict[str, TensorReport]:
    """Return how each named tensor is computed, and who decided it."""
    reports: dict[str, TensorReport] = {}
    for value in (value for part in regions(graph) for value in part.graph.values()):
        layout = given.of(value)
        arrives = None if layout.home else layout.existing
        sharding = arrives or choice.home(value)
        if value.name and sharding is not None:
            who = _decider(value, given, request)
            reports.setdefault(value.name, TensorReport(value.type, sharding, who))
    return reports


def _decider(value: Value, given: Constraints, request: Request) -> str:
    layout = given.of(value)
    if layout.home is not None:
        return "the user"
    if request.of(value.name).decided_by:
        return request.of(value.name).decided_by
    if layout.is_free:
        return COMPUTED_WITH
    if layout.existing is not None:
        return "the array that was passed in"
    return "the cheapest choice"
