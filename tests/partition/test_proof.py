"""The proof of one order refuses plans on which devices would wait for one another forever."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mithril import ops
from mithril.errors import PlanError
from mithril.ir import Builder, Graph, Node, Op, Start
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import AllGather, AllReduce, Permute
from mithril.plan import Plan, Stage
from mithril.plan.proof import check_promises, prove_order

from tests.graphs import run, values_for
from tests.transform.test_repeat import CASES, PARAMETERS, stack


def plan(case: str = "both") -> Plan:
    mesh, inputs, options = CASES[case]
    graph = stack(True)
    return run(graph, mesh, values_for(graph), inputs, differentiated=PARAMETERS, **options).plan


def with_op(plan: Plan, op: Op) -> Plan:
    """Return the plan with its last collective replaced."""
    (stage,) = plan.stages
    graph = stage.program.graph
    last = [node for node in graph.nodes if node.op.is_collective][-1]
    nodes: list[Node] = [replace(n, op=op) if n is last else n for n in graph.nodes]
    program = replace(stage.program, graph=Graph(graph.inputs, tuple(nodes), graph.outputs))
    return replace(plan, stages=(replace(stage, program=program),))


def test_plans_pass_loops_included() -> None:
    for case in CASES:
        made = plan(case)
        prove_order(made)
        assert any(n.op.is_collective for n in all_nodes(made.stages[0].program.graph))


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (AllReduce(("nowhere",), "sum"), r"runs over axes \('nowhere',\) of Mesh\(data=2, t=2\)"),
        (AllReduce(("data", "data"), "sum"), r"runs over axes \('data', 'data'\)"),
        (AllReduce((), "sum"), r"runs over axes \(\)"),
        (AllGather(("data",), 0, 4), "all_gather .* counts 4 members of 2"),
        (Permute(("data",), ()), r"permute .* sends \(\) in a group of 2"),
        (Permute(("data",), ((0, 1), (1, 1))), r"sends \(\(0, 1\), \(1, 1\)\) in a group of 2"),
        (Permute(("data",), ((0, 1), (0, 0))), "in a group of 2"),
        (Permute(("data",), ((0, 2),)), "in a group of 2"),
        (Start(Permute(("data",), ((2, 0),))), "permute .* in a group of 2"),
        (Start(AllGather(("data",), 0, 4)), "all_gather .* counts 4 members of 2"),
    ],
)
def test_a_collective_that_does_not_fit_is_refused(op: Op, text: str) -> None:
    with pytest.raises(PlanError, match=text + ".*; this is a fault of Mithril"):
        prove_order(with_op(plan(), op))


def test_a_permute_may_leave_members_out() -> None:
    prove_order(with_op(plan(), Permute(("data",), ((0, 1),))))


def test_stages_out_of_order_or_of_other_devices_are_refused() -> None:
    made = plan()
    (stage,) = made.stages
    twice = replace(made, stages=(stage, Stage("again", stage.program, stage.devices)))
    with pytest.raises(PlanError, match="stage 'again' is in no step of the timetable"):
        prove_order(twice)
    table = made.timetable
    (step,) = table.steps
    early = replace(step, inputs=step.outputs)
    with pytest.raises(PlanError, match="step 0 of the timetable takes what no earlier step makes"):
        prove_order(replace(made, timetable=replace(table, steps=(early,))))
    lost = replace(table, steps=(replace(step, outputs=step.inputs),))
    with pytest.raises(PlanError, match="no step of the timetable makes an output of the plan"):
        prove_order(replace(made, timetable=lost))
    fewer = replace(made, stages=(replace(stage, devices=stage.devices[1:]),))
    with pytest.raises(PlanError, match="stage 'main' runs on devices"):
        prove_order(fewer)


def test_a_port_that_does_not_fit_its_value_is_refused() -> None:
    program = plan().stages[0].program
    check_promises(program)
    first = program.inputs[0]
    wrong = replace(first, sharding=Sharding.replicated(first.sharding.mesh, first.type.rank))
    broken = replace(program, inputs=(wrong, *program.inputs[1:]))
    with pytest.raises(
        PlanError, match=r"'x' of the plan is P\(None, None\) with local shape \(4, 8"
    ):
        check_promises(broken)


def test_the_order_is_the_same_on_every_device_when_executed() -> None:
    builder = Builder()
    x = builder.input(stack(True).inputs[0].type, "x")
    graph = builder.build({"y": ops.sum(x)})
    ran = run(graph, Mesh(data=2, tensor=2), values_for(graph), {"x": P("data", "tensor")})
    assert tuple(ran.executed) == ran.plan.list_issued()
