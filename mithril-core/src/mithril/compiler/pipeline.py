"""The compiler: from a graph to a plan, pass by pass.

A graph on whole tensors goes through GRAPH_PASSES, which decide what is computed: in which dtypes,
by which kernels, with which gradients. `partition_parts` decides where: it lays out every tensor,
and makes a local program for every part. `plan_recomputed` chooses what of the forward is computed
again in the backward; stages are cut from what comes out. PROGRAM_PASSES change how these programs
run, and `place_in_plan`, which knows the memory of the whole plan, where their collectives start
and are waited for. CHECKS refuse a plan that cannot run, or breaks a limit that the user has set.

Every step is a pure function of frozen data. To add a pass, write it in a file of its own (of
`transform`, or `partition`), call it here from a function of the one signature, add that to the
tuple, and its option to `PlanOptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

from mithril.compiler.bucket_choice import choose_buckets
from mithril.compiler.collector import pause_collector
from mithril.compiler.communication import note_communication
from mithril.compiler.compression import compress, mark, narrow
from mithril.compiler.overlap import place_in_plan
from mithril.compiler.plugin_passes import change_graph, change_programs
from mithril.compiler.recompute import plan_recomputed
from mithril.compiler.request import PlanOptions, Request
from mithril.compiler.search import check_granted, complete, limit_fusion, search_plan
from mithril.cost import Target
from mithril.ir import Graph
from mithril.ir.rewrite import all_nodes
from mithril.ops.own_kernel import list_kernels
from mithril.ops.recurrent import Lstm
from mithril.partition.algorithms import carry_out
from mithril.partition.buckets import bucket_collectives
from mithril.partition.limits import (
    check_capabilities,
    check_dtypes,
    check_host_arena,
    check_memory,
    check_moves,
)
from mithril.partition.offload import offload
from mithril.partition.order_updates import order_updates
from mithril.partition.partition import Partitioned, partition_parts
from mithril.partition.pipeline.stacked_parameters import cut_layouts, cut_names
from mithril.partition.replicas import split_replicas
from mithril.partition.widen_reductions import widen_reductions
from mithril.plan import Plan, Program
from mithril.plan.proof import prove_order
from mithril.sharding import Layout, Search
from mithril.transform import (
    append_update,
    cast_gradients,
    compute_read_positions,
    differentiate,
    eliminate_dead,
    expand,
    expand_nodes,
    gradient_of,
    inline_checkpoints,
    mix,
    use_own_kernels,
)
from mithril.transform.stack import cut_loops

Asked = tuple[Graph, Request]
"""A graph, and what is asked of its plan."""
GraphPass = Callable[[Graph, Request, Target, PlanOptions], Asked]
ProgramPass = Callable[[Program, Target, PlanOptions], Program]
PlanCheck = Callable[[Plan, Request, Target, PlanOptions], None]


def make_plan(
    graph: Graph, request: Request, target: Target, options: PlanOptions | None = None
) -> Plan:
    """Return the plan of a graph.

    Args:
        graph: what is computed, on whole tensors, forward only.
        request: how its tensors lie, which gradients are wanted, and what runs where.
        target: where it will run.
        options: of the passes.

    Raises:
        BackendError: the target lacks a kernel or a collective that the plan needs.
        GraphError: a gradient is wanted that does not exist.
        MeshError: a sharding names an axis that the mesh lacks.
        PlanError: stages wait for each other, or a hidden move is too large.
        ShardingError: a dimension cannot be split as was asked for.

    >>> from mithril.ir import Builder
    >>> from mithril.mesh import Mesh, P, Sharding
    >>> from mithril.types import DType, TensorType
    >>> mesh, builder = Mesh(data=2), Builder()
    >>> x = builder.input(TensorType((4,), DType.float32), "x")
    >>> split, whole = Sharding.of(mesh, P("data"), 1), Sharding.of(mesh, P(), 1)
    >>> request = Request({"x": Layout(arrives=split), "y": Layout(leaves=whole)})
    >>> plan = make_plan(builder.build({"y": x}), request, Target("any", mesh, frozenset()))
    >>> [row.kind for row in plan.collectives()]
    ['all_gather']
    """
    with pause_collector():
        options = limit_fusion(options or PlanOptions())
        changed, asked = _change_graph(graph, request, target, options)
        options = complete(options, changed, asked)

        def plan_for(search: Search | None) -> Plan:
            return _make_plan(changed, asked, target, replace(options, search=search))

        plan = search_plan(plan_for, options.search, target, request.donated)
        check_granted(plan, request)
        check_memory(plan, target, request.donated, is_strict=options.strict_memory)
        return plan


def lay_out(
    graph: Graph, request: Request, target: Target, options: PlanOptions | None = None
) -> Plan:
    """Return a plan that is good for one thing: to read off how the inputs of `make_plan` lie.

    It computes nothing unless layers are placed, and no pass over its programs ran. Arguments and
    errors are those of `make_plan`; nothing may be searched for, which only whole plans decide.
    """
    with pause_collector():
        options = options or PlanOptions()
        graph, request = _change_graph(graph, request, target, options)
        return _lay_out(graph, request, target, options, only_inputs=True).plan


def _change_graph(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Asked:
    """Return a graph after all passes over it, which have nothing to do with a search."""
    for change in GRAPH_PASSES:
        graph, request = change(graph, request, target, options)
    return graph, request


def _lay_out(
    graph: Graph,
    request: Request,
    target: Target,
    options: PlanOptions,
    *,
    only_inputs: bool = False,
) -> Partitioned:
    return partition_parts(
        graph, request.layouts, target, request.placement, pads=options.pads,
        search=options.search, only_inputs=only_inputs,
    )  # fmt: skip


def _make_plan(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Plan:
    parts, search = _lay_out(graph, request, target, options), options.search
    if search is None:
        return replace(_finish_plan(parts, request, target, options), search=request.searched)
    known: dict[Hashable, Plan] = search.known.plans  # other searches find the same
    key = tuple(map(id, parts.locals))  # of equal choices they are the same objects
    if key not in known:
        known[key] = _finish_plan(parts, request, target, options)
    return replace(known[key], search=parts.plan.search or request.searched)


def _finish_plan(
    parts: Partitioned, request: Request, target: Target, options: PlanOptions
) -> Plan:
    """Return the plan of laid out parts, after all passes and checks."""
    parameters = request.parameters
    if options.search is not None:
        request = replace(request, layouts=parts.layouts)
    parts = parts.with_change(lambda program: change_local(program, request, target, options))
    request = request.keeping(parts.plan.inputs)

    def finish(plan: Plan, options: PlanOptions) -> Plan:
        stages = (replace(s, program=_finish(s.program, target, options)) for s in plan.stages)
        plan = replace(
            plan,
            stages=tuple(stages),
            notes=(*request.notes, *plan.notes),
            parameters=parameters,
            optimizer=request.optimizer,
        )
        return choose_kernels(change_programs(plan, target, options.passes), target)

    def draft(options: PlanOptions) -> Plan:
        plan = plan_recomputed(parts, partial(finish, options=options), request, target, options)
        return plan if options.replicas is None else split_replicas(plan, options.replicas)

    def place(plan: Plan) -> Plan:
        return place_in_plan(plan, target, options.overlap, request.donated)

    plan = choose_buckets(draft, place, target, options)
    plan = note_communication(plan, options, has_gradients=request.cotangents is not None)
    for check in CHECKS:
        check(plan, request, target, options)
    return plan


def change_local(
    program: Program, request: Request, target: Target, options: PlanOptions
) -> Program:
    """Return a local program, forward and backward in one, after the passes over it."""
    program = narrow(compress(program, target, options), request, target, options)
    return move_to_host(program, request, target, options)


def move_to_host(
    program: Program, request: Request, target: Target, options: PlanOptions
) -> Program:
    """Have values in the host arena while nobody needs them."""
    overlaps = target.hardware.execution.copies_beside
    return offload(program, options.offload, request.on_host, overlaps=overlaps)


def choose_kernels(plan: Plan, target: Target) -> Plan:
    """Return a plan whose ops run the kernels that somebody else brings for them.

    It comes last: nothing afterwards looks for these ops.
    """
    if not list_kernels(target.backend):
        return plan

    def choose(graph: Graph) -> Graph:
        return use_own_kernels(graph, target.backend)

    stages = (
        replace(stage, program=replace(stage.program, graph=choose(stage.program.graph)))
        for stage in plan.stages
    )
    whole = plan.whole and replace(plan.whole, graph=choose(plan.whole.graph))
    return replace(plan, stages=tuple(stages), whole=whole)


def _finish(program: Program, target: Target, options: PlanOptions) -> Program:
    """Return the program of a stage after all passes over it."""
    own = target.within(program.mesh)
    for change in PROGRAM_PASSES:
        program = change(program, own, options)
    return program


# ------------------------------------------------------------------ passes over the graph


def mix_precision(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Asked:
    """Put in the casts of a precision policy; gradients follow from them."""
    if not options.precision.is_given:
        return graph, request
    # A policy is about products; what is between those of a recurrent layer stays as wide as it is.
    layers = frozenset(node for node in all_nodes(graph) if isinstance(node.op, Lstm))
    graph = expand_nodes(graph, layers, target.kernel_names) if layers else graph
    return mix(graph, options.precision, request.parameters), request


def cut_stacks(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Asked:
    """Cut loops over stacked parameters that run on several stages, one loop for each."""
    placement = request.placement
    if placement is None or not placement.loops:
        return graph, request
    graph, slices = cut_loops(eliminate_dead(graph), placement.loops)
    placement, update = replace(placement, slices=slices), request.update
    differentiated = cut_names(request.differentiated, slices)
    if update is not None:  # takes gradients of whole stacks, which stages leave in parts
        placement = placement.with_part_for_stacks(target.mesh)
        parts = {part.name for part in slices}
        made = (gradient_of(name) for name in differentiated if name in parts)
        update = replace(update, told=(*update.told, *made))
    return graph, replace(
        request,
        layouts=cut_layouts(request.layouts, slices),
        differentiated=differentiated,
        placement=placement,
        update=update,
    )


def expand_fused(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Asked:
    """Expand what the target has no kernel for."""
    return expand(eliminate_dead(graph), target.kernel_names), request


def run_plugin_graph_passes(
    graph: Graph, request: Request, target: Target, options: PlanOptions
) -> Asked:
    """Run the passes of plugins over the graph that were asked for; gradients follow from them."""
    graph, notes = change_graph(graph, target, options.passes)
    return graph, replace(request, notes=(*request.notes, *notes)) if notes else request


def leave_out_positions(
    graph: Graph, request: Request, target: Target, options: PlanOptions
) -> Asked:
    """Compute only the positions that are read; gradients follow from them."""
    return compute_read_positions(graph), request


def add_gradients(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Asked:
    """Add the backward computation; a gradient leaves as the input arrives that it is of."""
    if request.cotangents is None:
        return graph, request
    follow = {gradient_of(name): Layout(follows=name) for name in request.differentiated}
    joint = differentiate(graph, request.cotangents, request.differentiated)
    if options.gradients is not None:
        joint = cast_gradients(joint, request.parameters, options.gradients)
    return joint, replace(request, layouts={**follow, **request.layouts})


def mark_compressed(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Asked:
    """Mark the gradients whose sums over devices are compressed."""
    return mark(graph, request, target, options), request


def add_update(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Asked:
    """Append what a train step makes of the gradients."""
    return graph if request.update is None else append_update(graph, request.update), request


def open_checkpoints(graph: Graph, request: Request, target: Target, options: PlanOptions) -> Asked:
    """Put the bodies of checkpoints in their places, where the backward runs them again."""
    return inline_checkpoints(graph), request


GRAPH_PASSES: tuple[GraphPass, ...] = (
    mix_precision,
    run_plugin_graph_passes,
    cut_stacks,
    expand_fused,
    leave_out_positions,
    add_gradients,
    mark_compressed,
    add_update,
    open_checkpoints,
    expand_fused,
)


# ------------------------------------------------------------------ passes over the programs


def sort_updates(program: Program, target: Target, options: PlanOptions) -> Program:
    """Have parameters updated in the order in which their gradients arrive."""
    return order_updates(program, target.hardware)


def bucket(program: Program, target: Target, options: PlanOptions) -> Program:
    """Gather the sums of gradients, and what fetches parameters at rest, into buckets."""
    return bucket_collectives(program, target.hardware, options.fusion)


def widen(program: Program, target: Target, options: PlanOptions) -> Program:
    """Take reductions of 16-bit floats over devices in float32."""
    return widen_reductions(program, target.hardware)


def use_algorithms(program: Program, target: Target, options: PlanOptions) -> Program:
    """Carry collectives out by the algorithms that were asked for."""
    return carry_out(program, target.hardware, options.algorithms)


# Updates are sorted twice: what they gather is put into buckets in their order, and buckets hand
# several gradients on at once, in an order of their own.
PROGRAM_PASSES: tuple[ProgramPass, ...] = (
    widen, sort_updates, bucket, sort_updates, use_algorithms,
)  # fmt: skip


# ------------------------------------------------------------------ checks of the plan


def check_order(plan: Plan, request: Request, target: Target, options: PlanOptions) -> None:
    """Prove that no device waits for ever."""
    prove_order(plan)


def check_collectives(plan: Plan, request: Request, target: Target, options: PlanOptions) -> None:
    """Refuse a collective that the target does not offer."""
    check_capabilities(plan, target)


def check_held(plan: Plan, request: Request, target: Target, options: PlanOptions) -> None:
    """Refuse a value of a dtype that the target does not have."""
    check_dtypes(plan, target.backend, target.dtypes)


def check_hidden_moves(plan: Plan, request: Request, target: Target, options: PlanOptions) -> None:
    """Refuse a move that is larger than the user allows, unless it was asked for."""
    if options.max_reshard_bytes is not None:
        split = {name for name, layout in request.layouts.items() if layout.is_brought}
        check_moves(plan, options.max_reshard_bytes, split | set(map(gradient_of, split)))


def check_offload(plan: Plan, request: Request, target: Target, options: PlanOptions) -> None:
    """Refuse an offload that finds nothing, or that something computes with."""
    check_host_arena(plan, options.offload, has_backward=request.cotangents is not None)


CHECKS: tuple[PlanCheck, ...] = (
    check_order, check_collectives, check_held, check_hidden_moves, check_offload,
)  # fmt: skip
