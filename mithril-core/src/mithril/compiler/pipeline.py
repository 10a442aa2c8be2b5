"""The passes, in the order in which they run.

    expand -> differentiate -> inline checkpoints -> candidates (expand more) -> choose -> localise
    -> bucket -> prove

Every step is a pure function of frozen data; `make_plan` is their composition. Before them a model
is traced, and casts are put in where it mixes precisions (`transform.precision.mix`).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from mithril.compiler.request import Request, constraints
from mithril.cost import SIMULATED, Hardware
from mithril.ir import Graph, Plan, Program, Stage, TensorReport, Value, Whole
from mithril.mesh import Mesh, common, refine
from mithril.partition.buckets import bucket_gradients
from mithril.partition.hints import hints
from mithril.partition.proof import check_promises, prove_order
from mithril.partition.spmd import localise
from mithril.sharding import Candidates, Choice, Constraints, Resharder, choose, collect
from mithril.sharding.regions import regions
from mithril.transform import (
    differentiate,
    eliminate_dead,
    expand,
    expand_local,
    expand_nodes,
    inline_checkpoints,
    runnable,
)

COMPUTED_WITH = "the sharding it is computed with"
"""Who decided where an array lies that the plan was free to place."""


def make_plan(
    graph: Graph,
    mesh: Mesh,
    request: Request,
    kernels: Container[str],
    hardware: Hardware = SIMULATED,
) -> Plan:
    """Return the plan of a graph on a mesh.

    Args:
        graph: the forward graph.
        mesh: the devices.
        request: shardings given and gradients wanted.
        kernels: names of the ops the engine runs itself.
        hardware: the profile that prices the choices.
    """
    graph = expand(eliminate_dead(graph), kernels)
    if request.output_gradients is not None:
        graph = differentiate(graph, list(request.output_gradients), request.differentiated)
    graph = expand(eliminate_dead(inline_checkpoints(graph)), kernels)
    graph, given, candidates = open_candidates(graph, mesh, request, kernels)
    program, choice = partition_graph(graph, given, candidates, hardware)
    program = replace(program, graph=expand_local(program.graph, kernels))
    inexact = () if choice.is_exact else (_INEXACT,)
    notes = (*request.notes, *inexact, *hints(graph, given, choice))
    stage = Stage("main", program, tuple(range(mesh.size)))
    homes = {value: home for value in graph.values() if (home := choice.home(value)) is not None}
    reports = _reports(graph, choice, given, request)
    plan = Plan(mesh, (stage,), reports, notes, Whole(runnable(graph), homes))
    prove_order(plan)
    return plan


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
        given = constraints(graph, finer, request)
        candidates = collect(graph, given)
        if candidates.expandable:
            graph = expand_nodes(graph, candidates.expandable, kernels)
        elif candidates.cuts:
            cut = (refine(mesh, {axis: sizes}) for axis, sizes in candidates.cuts.items())
            finer = common([finer, *cut])
        else:
            return graph, given, candidates


def partition_graph(
    graph: Graph,
    given: Constraints,
    candidates: Candidates,
    hardware: Hardware = SIMULATED,
) -> tuple[Program, Choice]:
    """Return the local program of a graph, and the choice it follows."""
    resharder = Resharder(given.mesh, hardware, given.pads)
    choice = choose(graph, given, candidates, resharder, hardware)
    program = localise(graph, given, choice, resharder)
    check_promises(program)
    return bucket_gradients(program, hardware), choice


_INEXACT = (
    "the choice is not proved to be the cheapest: a cost table outgrew its cap and some choices "
    "were made one at a time"
)


def _reports(
    graph: Graph, choice: Choice, given: Constraints, request: Request
) -> dict[str, TensorReport]:
    reports: dict[str, TensorReport] = {}
    for value in (value for part in regions(graph) for value in part.graph.values()):
        arrives = None if value in given.free or value in given.homes else given.inputs.get(value)
        sharding = arrives or choice.home(value)
        if value.name and sharding is not None:
            who = _decider(value, given, request)
            reports.setdefault(value.name, TensorReport(value.type, sharding, who))
    return reports


def _decider(value: Value, given: Constraints, request: Request) -> str:
    if value in given.homes:
        return "the user"
    if value.name in request.decided_by:
        return request.decided_by[value.name]
    if value in given.free:
        return COMPUTED_WITH
    if value in given.inputs:
        return "the array that was passed in"
    return "the cheapest choice"
