"""Sums that a loop takes are taken behind it, where that is the same."""

from __future__ import annotations

import pytest
from mithril import ops
from mithril.cost import SIMULATED
from mithril.errors import PlanError
from mithril.ir import Builder, Graph, Node, Repeat
from mithril.mesh import MICRO, Axis, Mesh
from mithril.ops.collective import AllReduce
from mithril.ops.compression import MarkGradient
from mithril.options import GradientCompression
from mithril.partition.compression import Compression, compress_gradients
from mithril.partition.compression.loops import take_sums_behind_loops
from mithril.plan import Program
from mithril.types import DType, TensorType

ROW = TensorType((4, 6), DType.float32)
SUM = AllReduce(("data",), "sum")


def loop_of_sums(*, goes_on: bool) -> tuple[Graph, Node]:
    """Return a loop that sums each slice of a stack over devices, and the sum in it."""
    inner = Builder()
    x = inner.input(ROW, "x")
    (total,) = inner.apply(SUM, x)
    body = inner.build({"made": ops.relu(total) if goes_on else total})
    outer = Builder()
    stack = outer.input(TensorType((3, 4, 6), DType.float32), "stack")
    (made,) = outer.apply(Repeat(body, 3, 0, 1), stack)
    return outer.build({"made": made}), next(n for n in body.nodes if n.op == SUM)


def test_a_sum_is_taken_of_the_stack() -> None:
    graph, node = loop_of_sums(goes_on=False)
    found = take_sums_behind_loops(graph, {node: "w"})
    assert [n.op.name for n in found.nodes] == ["repeat", "all_reduce"]
    assert found.nodes[1].inputs[0].type.shape == (3, 4, 6)
    assert not any(n.op.is_collective for n in found.nodes[0].op.bodies[0].nodes)


def test_a_sum_that_the_loop_goes_on_with_is_refused() -> None:
    graph, node = loop_of_sums(goes_on=True)
    with pytest.raises(PlanError, match="'w', whose gradient a loop sums over devices and goes on"):
        take_sums_behind_loops(graph, {node: "w"})


def test_a_sum_of_each_micro_batch_is_refused() -> None:
    builder = Builder()
    x = builder.input(ROW, "x")
    (total,) = builder.apply(SUM, ops.relu(x))
    (marked,) = builder.apply(MarkGradient("w", "w", 0, keeps_state=True), total)
    mesh = Mesh.of_axes([Axis("data", 2), Axis(MICRO, 2)])
    program = Program(mesh, builder.build({"made": marked}), (), ())
    asked = Compression((("*", GradientCompression("powersgd")),))
    with pytest.raises(PlanError, match="'w', whose gradient is summed over devices in each micro"):
        compress_gradients(program, asked, SIMULATED)
