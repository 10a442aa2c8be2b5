"""The proof that no plan can hang: a group's devices issue the same collectives in one order.

All devices of a stage run one program. A program has no branches, and its only loops run a number
of times that is written in it; so two devices can differ only in which group of a collective they
belong to. What is left to show is that the groups of each collective are a partition of the
devices, and that all members agree on its size and on who sends to whom. A member that a permute
leaves out takes part in it all the same. A collective is issued where it starts, so that is where
it stands in the order; it can be issued there only if its operands are made before, and ends only
if it is waited for, once, before anything uses it.
"""

from __future__ import annotations

from mithril.errors import GraphError, PlanError
from mithril.ir import Graph, Node
from mithril.ir.rewrite import all_nodes, regions
from mithril.ir.start import verify_starts
from mithril.ops.collective import Collective, collective_of
from mithril.plan import Plan, Program


def prove_order(plan: Plan) -> None:
    """Raise unless all devices of each group issue the same collectives in the same order.

    Stages run, and values are sent, in the one order of the plan's timetable, in which every step
    needs only what earlier ones have made.

    Raises:
        PlanError: a collective does not fit its mesh, or a step or a node comes before what it
            needs, or a collective is not waited for, or a stage never runs; a fault of Mithril.
    """
    _check_steps(plan)
    for stage in plan.stages:
        if len(set(stage.devices)) != stage.program.mesh.size:
            raise _fault(f"stage '{stage.name}' runs on devices {stage.devices}")
        for node in all_nodes(stage.program.graph):
            if (op := collective_of(node.op)) is not None:
                _check(node, op, stage.program)
        for region in regions(stage.program.graph):
            _check_nodes(region.graph)


def _check_steps(plan: Plan) -> None:
    table = plan.timetable
    filled = {*table.given, *(index.slot for index in table.indices)}
    for number, step in enumerate(table.steps):
        if not filled.issuperset(step.takes):
            raise _fault(f"step {number} of the timetable takes what no earlier step makes")
        filled.update(step.makes)
    if not filled.issuperset(table.made):
        raise _fault("no step of the timetable makes an output of the plan")
    missing = [s.name for n, s in enumerate(plan.stages) if n not in table.times()]
    if missing:
        raise _fault(f"stage '{missing[0]}' is in no step of the timetable")


def _check(node: Node, op: Collective, program: Program) -> None:
    sizes = program.mesh.sizes
    if len(set(op.axes)) < len(op.axes) or not op.axes or set(op.axes) - set(sizes):
        raise _fault(f"{op.name} at {node.where()} runs over axes {op.axes} of {program.mesh!r}")
    group = program.mesh.product(op.axes)
    if misfit := op.check(group):
        raise _fault(f"{op.name} at {node.where()} {misfit}")


def _check_nodes(graph: Graph) -> None:
    """Raise unless every node follows what it needs, and every start is waited for."""
    made = set(graph.inputs)
    for node in graph.nodes:
        if not made.issuperset(node.inputs):
            raise _fault(f"{node.op.name} at {node.where()} comes before what it needs")
        made.update(node.outputs)
    try:
        verify_starts(graph)
    except GraphError as error:
        raise _fault(str(error)) from None


def check_promises(program: Program) -> None:
    """Raise unless every input and output is a whole value of the shape its port says.

    Raises:
        PlanError: one is partial or has another shape; a fault of Mithril's.
    """
    graph = program.graph
    values = (*graph.inputs, *(graph.outputs[port.name] for port in program.outputs))
    for port, value in zip((*program.inputs, *program.outputs), values, strict=True):
        expected = port.sharding.local_shape(port.type.shape)
        if port.sharding.partial or value.type.shape != expected:
            raise PlanError(
                f"'{port.name}' of the plan is {port.sharding.describe()} with local shape "
                f"{value.type.shape}; this is a fault of Mithril, please report it"
            )


def _fault(what: str) -> PlanError:
    return PlanError(f"{what}; this is a fault of Mithril, please report it")
