"""What waits for a collective, and nothing else for it, is done last."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mithril import ops
from mithril.compiler.overlap import _defer_within as defer_within
from mithril.cost import SIMULATED
from mithril.cost.kernels import OpCosts
from mithril.cost.streams import Pricing
from mithril.ir import Builder, Graph, Node, Phase, Value
from mithril.mesh import Mesh
from mithril.ops import Exp, Multiply, Sum
from mithril.ops.collective import AllReduce
from mithril.partition.overlap.defer import defer_uncritical
from mithril.plan import Execution, Plan, Stage
from mithril.plan.timetable import Timetable
from mithril.types import DType, TensorType

from tests.engine.programs import program_of


def tensor(*shape: int) -> Value:
    return Value(TensorType(shape, DType.float32))


def applied(op: object, *inputs: Value, phase: Phase = Phase.forward) -> Node:
    return Node(op, inputs, tuple(map(Value, op.infer([x.type for x in inputs]))), phase=phase)


def test_a_loss_is_scaled_after_the_backward_computation():
    x = tensor(3)
    total = applied(Sum((0,), False), x)
    reduced = applied(AllReduce(("data",), "sum"), total.outputs[0])
    loss = applied(Multiply(), reduced.outputs[0], reduced.outputs[0])
    slope = applied(Exp(), x)
    gradient = applied(AllReduce(("data",), "sum"), slope.outputs[0])
    outputs = {"loss": loss.outputs[0], "gradient": gradient.outputs[0]}
    found = defer_uncritical(Graph((x,), (total, reduced, loss, slope, gradient), outputs))
    assert found.nodes == (total, reduced, slope, gradient, loss)


def test_updates_stay_where_their_gradients_would_live_longer():
    x = tensor(3)
    reduced = applied(AllReduce(("data",), "sum"), x)
    loss = applied(Exp(), reduced.outputs[0])
    gradient = applied(AllReduce(("data",), "sum"), x)
    update = applied(Multiply(), gradient.outputs[0], x, phase=Phase.update)
    other = applied(Exp(), x)
    outputs = {"x": update.outputs[0], "loss": loss.outputs[0], "other": other.outputs[0]}
    graph = Graph((x,), (reduced, loss, gradient, update, other), outputs)
    assert defer_uncritical(graph).nodes == (reduced, gradient, other, loss, update)
    found = defer_uncritical(graph, with_updates=False)
    assert found.nodes == (reduced, gradient, update, other, loss)


def test_what_another_collective_waits_for_stays():
    x = tensor(3)
    first = applied(AllReduce(("data",), "sum"), x)
    middle = applied(Exp(), first.outputs[0])
    second = applied(AllReduce(("data",), "sum"), middle.outputs[0])
    nodes = (first, middle, second)
    assert defer_uncritical(Graph((x,), nodes, {"y": second.outputs[0]})).nodes == nodes


def plan_of_a_loss() -> tuple[Plan, Pricing]:
    """Return a plan with a loss that is summed before products, which do not wait for it."""
    builder, mesh = Builder(), Mesh(data=2)
    x = builder.input(TensorType((64, 64), DType.float32), "x")
    (total,) = builder.apply(AllReduce(("data",), "sum"), ops.sum(x))
    graph = builder.build({"loss": total * 0.5, "y": x @ x @ x})
    stage = Stage("main", program_of(mesh, graph), (0, 1))
    hardware = replace(SIMULATED, execution=Execution(overlaps=True))
    return Plan(mesh, (stage,), Timetable((), (), (), (), (), ())), Pricing(
        mesh, hardware, OpCosts()
    )


@pytest.mark.parametrize(("limit", "last"), [(2, "multiply"), (1, "einsum")])
def test_within_a_limit_results_are_deferred_if_that_fits(limit: int, last: str) -> None:
    plan, pricing = plan_of_a_loss()
    found = defer_within(plan, [pricing], limit, lambda plan_now: 1 + (plan_now is not plan))
    assert found.stages[0].program.graph.nodes[-1].op.name == last
