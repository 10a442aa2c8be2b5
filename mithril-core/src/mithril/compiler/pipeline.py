"""The passes, in the order in which they run.

    expand -> differentiate -> inline checkpoints -> candidates (expand more) -> choose -> localise
    -> bucket -> prove

Every step is a pure function of frozen data; `make_plan` is their composition. Before them a model
is traced, and casts are put in where it mixes precisions (`transform.precision.mix`). Where layers
are placed on devices, or run as stages, what follows the candidates is done for each part of the
mesh (`compiler.placed`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from mithril.compiler.partitioning import choose_shardings, local_program, reports_of
from mithril.compiler.placed import make_placed_plan
from mithril.compiler.request import Request, of_slices
from mithril.cost import SIMULATED, Hardware
from mithril.ir import Graph
from mithril.mesh import Mesh
from mithril.partition.buckets import bucket_gradients
from mithril.partition.hints import hints
from mithril.partition.pipeline import Placement
from mithril.partition.pipeline.stacked_parameters import with_stacks
from mithril.plan import Plan, Whole
from mithril.plan.proof import prove_order
from mithril.transform import (
    differentiate,
    eliminate_dead,
    expand,
    expand_local,
    inline_checkpoints,
    runnable,
)
from mithril.transform.stack import Slice, cut_loops

_INEXACT = (
    "the choice is not proved to be the cheapest: a cost table outgrew its cap and some choices "
    "were made one at a time"
)


def make_plan(
    graph: Graph,
    mesh: Mesh,
    request: Request,
    kernels: Container[str],
    hardware: Hardware = SIMULATED,
    placement: Placement | None = None,
) -> Plan:
    """Return the plan of a graph on a mesh.

    Args:
        graph: the forward graph.
        mesh: the devices.
        request: shardings given and gradients wanted.
        kernels: names of the ops the engine runs itself.
        hardware: the profile that prices the choices.
        placement: what runs where, if layers are placed on devices or run as stages.
    """
    slices: Sequence[Slice] = ()
    existing = request.existing()
    if placement is not None and placement.loops:
        graph, slices = cut_loops(eliminate_dead(graph), placement.loops)
        request = of_slices(request, slices)
    graph = expand(eliminate_dead(graph), kernels)
    if request.cotangents is not None:
        graph = differentiate(graph, request.cotangents, request.differentiated)
        request = request.following()
    graph = expand(eliminate_dead(inline_checkpoints(graph)), kernels)
    if placement is not None:
        plan = make_placed_plan(graph, mesh, request, placement, kernels, hardware)
        return with_stacks(plan, slices, placement.axis, existing) if slices else plan
    graph, given, choice = choose_shardings(graph, mesh, request, kernels, hardware)
    program = local_program(graph, given, choice, hardware)
    program = replace(program, graph=expand_local(program.graph, kernels))
    program = bucket_gradients(program, hardware)
    inexact = () if choice.is_exact else (_INEXACT,)
    notes = (*request.notes, *inexact, *hints(graph, given, choice))
    homes = {value: home for value in graph.values() if (home := choice.home(value)) is not None}
    reports = reports_of(graph, choice, given, request)
    plan = Plan.of_program(mesh, program, reports, notes, Whole(runnable(graph), homes))
    prove_order(plan)
    return plan
