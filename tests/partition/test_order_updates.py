"""Parameters are updated in the order in which their gradients arrive."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import pytest
from mithril import ops
from mithril.cost import SIMULATED, predict_timeline
from mithril.ir import Builder, Graph, Node, Phase
from mithril.mesh import Mesh, P
from mithril.ops.collective import AllReduce, collective_of
from mithril.ops.optimizer import AdamWStep
from mithril.partition.order_updates import order_updates
from mithril.plan import Execution, Plan
from mithril.runtime.planned import plan_backend
from mithril.types import DType, TensorType

from tests.algorithms.cases import program_of

BESIDE = replace(
    SIMULATED,
    levels=[replace(SIMULATED.levels[0], bandwidth=1e7)],
    execution=Execution(overlaps=True),
)
LAYERS = 4


def plan_step(backend: ml.Backend, **options: object) -> Plan:
    model = ml.Model()
    for n in range(LAYERS):
        model += ml.Linear(16, name=f"layer{n}")(
            **({"input": "x"} if not n else {}), output=f"h{n}"
        )
    model |= ml.MeanSquaredError(name="end")(input=f"h{LAYERS - 1}", target="t", output="loss")
    split = ml.TensorSpec((8, 16), sharding=P("data"))
    step = ml.train_step(
        model, backend, ml.optim.adamw(1e-3), shapes={"x": split, "t": split}, **options
    )
    return step.plan


def list_updated(plan: Plan) -> list[str]:
    """Return the layers of updates, in order, each once."""
    scopes = (node.scope for node in graph_of(plan).nodes if isinstance(node.op, AdamWStep))
    return list(dict.fromkeys(scopes))


def graph_of(plan: Plan) -> Graph:
    return plan.stages[0].program.graph


FIRST_TO_LAST = [f"layer{n}" for n in range(LAYERS)]


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_the_last_layer_is_updated_first(zero: int) -> None:
    plan = plan_step(plan_backend(Mesh(data=2), BESIDE), zero=zero, fusion_bytes=2000)
    assert list_updated(plan) == FIRST_TO_LAST[::-1]


def test_devices_that_wait_for_each_collective_keep_the_order() -> None:
    assert list_updated(plan_step(ml.NumpyBackend(Mesh(data=2)))) == FIRST_TO_LAST


def test_an_update_waits_for_its_own_bucket_alone() -> None:
    """So some are computed before the last gradient has arrived."""
    graph = graph_of(plan_step(plan_backend(Mesh(data=2), BESIDE), fusion_bytes=2000))
    sums = [n for n in graph.nodes if isinstance(collective_of(n.op), AllReduce)]
    assert len(sums) > 2
    makers = graph.producers()

    def find_sum(node: Node) -> Node:
        while node not in sums:
            node = makers[node.inputs[1 if isinstance(node.op, AdamWStep) else 0]]
        return node

    order = [sums.index(find_sum(n)) for n in graph.nodes if isinstance(n.op, AdamWStep)]
    assert order == sorted(order)
    assert len(set(order)) > 2


def test_a_step_takes_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def predict() -> float:
        plan = plan_step(plan_backend(Mesh(data=2), BESIDE), fusion_bytes=2000)
        return float(predict_timeline(plan, BESIDE).seconds)

    ordered = predict()
    monkeypatch.setattr("mithril.partition.order_updates._order", lambda graph: graph)
    assert ordered < predict()


def test_what_reads_an_update_keeps_its_place() -> None:
    """Where it is no update itself the program stays as it is."""
    builder = Builder()
    x = builder.input(TensorType((2,), DType.float32), "x")
    with builder.at(phase=Phase.update):
        new = x + x
        kept = x * x
    graph = builder.build({"read": ops.exp(new), "kept": kept})
    program = program_of(graph, Mesh(data=2))
    assert order_updates(program, BESIDE).graph.nodes == graph.nodes
