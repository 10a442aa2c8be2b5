"""Sums of 16-bit floats over devices: in float32 where the target would add in 16 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mithril import ops
from mithril.compiler import Request, Target, make_plan
from mithril.cost import SIMULATED, Hardware, collective_seconds
from mithril.engine.kernels import KERNELS
from mithril.ir import Builder, Graph
from mithril.ir.rewrite import all_nodes
from mithril.mesh import Mesh, P, PartitionSpec, Sharding
from mithril.ops.collective import AllReduce, ReduceScatter
from mithril.plan import Execution, Plan
from mithril.sharding import Layout
from mithril.sharding.reshard import Resharder
from mithril.types import DType, TensorType

MESH = Mesh(data=4)
WHOLE = P()
NARROW = replace(SIMULATED, execution=Execution(adds_narrow=True))


def graph_of(dtype: DType, reduce: str = "sum") -> Graph:
    builder = Builder()
    x = builder.input(TensorType((4, 8), dtype), "x")
    made = ops.sum(x, axis=0) if reduce == "sum" else ops.max(x, axis=0)
    return builder.build({"y": made})


def plan_of(graph: Graph, hardware: Hardware = NARROW, leaves: PartitionSpec = WHOLE) -> Plan:
    layouts = {
        "x": Layout(arrives=Sharding.of(MESH, P("data"), 2)),
        "y": Layout(leaves=Sharding.of(MESH, leaves, 1)),
    }
    target = Target("any", MESH, frozenset(KERNELS), hardware=hardware)
    return make_plan(graph, Request(layouts), target)


@pytest.mark.parametrize(("leaves", "kind"), [(P(), AllReduce), (P("data"), ReduceScatter)])
def test_a_sum_is_exchanged_in_float32_and_rounded(leaves: P, kind: type) -> None:
    plan = plan_of(graph_of(DType.bfloat16), leaves=leaves)
    (row,) = plan.collectives()
    assert (row.kind, row.bytes) == (kind.name, 8 * 4)
    (node,) = [n for n in all_nodes(plan.stages[0].program.graph) if n.op.is_collective]
    assert node.inputs[0].type.dtype == DType.float32
    (result,) = plan.outputs
    assert result.type.dtype == DType.bfloat16
    priced = collective_seconds(row.kind, row.bytes, row.axes, MESH, NARROW)
    assert row.cause.seconds == priced


def test_a_maximum_is_exchanged_in_float32_where_that_is_compared() -> None:
    hardware = replace(SIMULATED, execution=Execution(compares_wide=True))
    plan = plan_of(graph_of(DType.bfloat16, "max"), hardware)
    (row,) = plan.collectives()
    assert (row.kind, row.bytes) == (AllReduce.name, 8 * 4)
    assert row.cause.seconds == collective_seconds(row.kind, row.bytes, row.axes, MESH, hardware)
    scattered = plan_of(graph_of(DType.bfloat16, "max"), hardware, P("data"))
    assert [row.bytes for row in scattered.collectives()] == [8 * 2], "in parts they are compared"


def test_others_stay_as_they_are() -> None:
    (row,) = plan_of(graph_of(DType.bfloat16), SIMULATED).collectives()
    assert row.bytes == 8 * 2, "these devices add up in float32 themselves"
    (row,) = plan_of(graph_of(DType.bfloat16, "max")).collectives()
    assert row.bytes == 8 * 2
    plan = plan_of(graph_of(DType.float32))
    assert [row.bytes for row in plan.collectives()] == [8 * 4]
    assert "cast" not in {node.op.name for node in all_nodes(plan.stages[0].program.graph)}


def test_choices_are_priced_in_float32() -> None:
    type = TensorType((8,), DType.float16)
    partial = Sharding(MESH, ((),), (("data", "sum"),))
    for goal in (P(), P("data")):
        narrow, wide = (
            Resharder(MESH, hardware).path(partial, Sharding.of(MESH, goal, 1), type)
            for hardware in (SIMULATED, NARROW)
        )
        seconds = [collective_seconds(m.kind, 8 * 4, m.axes, MESH, NARROW) for m in wide.moves]
        assert wide.price == round(sum(seconds) * 1e12) > narrow.price
