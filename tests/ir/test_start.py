"""A collective that is started and waited for: what is refused, printed, written, and counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mithril import ops
from mithril.errors import GraphError
from mithril.ir import Builder, Cause, Graph, Node, Repeat, Start, Tensor, Value, Wait
from mithril.ir.rewrite import all_nodes
from mithril.ir.serialize import graph_from_json, graph_to_json
from mithril.ir.start import join_starts
from mithril.ir.verify import verify
from mithril.mesh import Mesh
from mithril.ops.arithmetic import Negate
from mithril.ops.collective import AllGather, AllReduce
from mithril.plan import Plan
from mithril.plan.proof import prove_order
from mithril.report import print_collectives
from mithril.types import DType, TensorType

from tests.engine.programs import f32, program_of

SUM, BOTH = AllReduce(("a",), "sum"), AllGather(("a",), 0, 2)


def overlapped() -> Graph:
    """Return a graph with work between the start of a bucket and its wait."""
    builder = Builder()
    x, y = builder.input(f32(4), "x"), builder.input(f32(2), "y")
    cause = Cause("the gradient", "partial", "whole", "linear_0", seconds=1e-6)
    with builder.at(scope="linear_0", cause=cause):
        pending = builder.apply(Start(SUM), x, y)
    work = ops.sin(x)
    first, second = builder.apply(Wait(), *pending)
    return builder.build({"made": first + work, "second": second})


def with_nodes(graph: Graph, *nodes: Node) -> Graph:
    return Graph(graph.inputs, nodes, graph.outputs)


def test_a_start_with_its_wait_is_well_formed() -> None:
    graph = verify(overlapped())
    start, _, wait, _ = graph.nodes
    assert [value.type for value in start.outputs] == [f32(4), f32(2)]
    assert [value.type for value in wait.outputs] == [f32(4), f32(2)]


def test_a_start_without_a_wait_is_refused() -> None:
    graph = overlapped()
    start, sine, _, _ = graph.nodes
    lone = Graph(graph.inputs, (start, sine), {"made": sine.outputs[0]})
    with pytest.raises(GraphError, match=r"start.* at 'linear_0' has 0 waits; it needs one"):
        verify(lone)


def test_a_second_wait_is_refused() -> None:
    graph = overlapped()
    start, sine, wait, add = graph.nodes
    again = replace(wait, outputs=tuple(Value(v.type) for v in wait.outputs))
    with pytest.raises(GraphError, match="has 2 waits; it needs one"):
        verify(with_nodes(graph, start, sine, wait, again, add))


def test_only_a_wait_may_use_what_is_pending() -> None:
    graph = overlapped()
    start, sine, wait, add = graph.nodes
    early = Node(Negate(), start.outputs[:1], (Value(f32(4)),))
    with pytest.raises(GraphError, match=r"op 'negate' .* uses .*, which is pending; wait for it"):
        verify(with_nodes(graph, start, sine, early, wait, add))
    with pytest.raises(GraphError, match="output 'y' of the graph is pending; wait for it"):
        verify(Graph(graph.inputs, (start, wait), {"y": start.outputs[0]}))


def test_a_wait_takes_the_results_of_one_start_in_their_order() -> None:
    graph = overlapped()
    start, sine, wait, _ = graph.nodes
    for taken in (start.outputs[:1], start.outputs[::-1], sine.outputs, ()):
        outputs = tuple(Value(value.type) for value in taken)
        wrong = replace(wait, inputs=tuple(taken), outputs=outputs)
        with pytest.raises(GraphError, match="not the results of one start; give it all of them"):
            verify(Graph(graph.inputs, (start, sine, wrong), {"y": sine.outputs[0]}))


def test_what_is_no_collective_cannot_be_started() -> None:
    builder = Builder()
    pending = builder.apply(Start(Negate()), builder.input(f32(4), "x"))
    (made,) = builder.apply(Wait(), *pending)
    with pytest.raises(GraphError, match="begins no collective, but negate"):
        verify(builder.build({"y": made}))


def test_a_graph_with_starts_is_written_and_read() -> None:
    text = graph_to_json(overlapped())
    read = graph_from_json(text)
    assert str(read) == str(overlapped())
    assert read.nodes[0].op == Start(SUM)
    assert "start[collective=all_reduce[axes=('a',), reduction='sum']](x, y)" in str(read)


def test_a_plan_counts_a_started_collective_once() -> None:
    mesh = Mesh(a=2)
    program = program_of(mesh, overlapped())
    plan = Plan.of_program(mesh, program)
    prove_order(plan)
    (row,) = plan.collectives()
    assert (row.kind, row.axes, row.bytes) == ("all_reduce", ("a",), 24)
    assert (row.scope, row.cause.value) == ("linear_0", "the gradient")
    assert plan.list_issued() == (("all_reduce", ("a",), 24),)
    assert "  all_reduce over a: the gradient, 24 bytes" in print_collectives(plan)
    gathered = replace(program, graph=started_gather())
    assert next(gathered.list_issued()) == ("all_gather", ("a",), 32)


def started_gather() -> Graph:
    builder = Builder()
    pending = builder.apply(Start(BOTH), builder.input(f32(4), "x"))
    return builder.build({"y": builder.apply(Wait(), *pending)[0]})


def test_joined_starts_are_the_collectives_alone() -> None:
    graph = verify(join_starts(overlapped()))
    assert [node.op.name for node in graph.nodes] == ["all_reduce", "sin", "add"]
    assert graph.nodes[0].cause == overlapped().nodes[0].cause
    assert graph.outputs["second"] is graph.nodes[0].outputs[1]


def test_starts_in_loops_are_joined_where_they_are() -> None:
    body = Builder()
    x: Tensor = body.input(f32(4), "x")
    pending = body.apply(Start(SUM), x)
    work = ops.sin(x)
    op = Repeat(body.build({"x": body.apply(Wait(), *pending)[0] * work}), 3, 1, 0)
    builder = Builder()
    graph = builder.build({"y": builder.apply(op, builder.input(f32(4), "x"))[0]})
    joined = verify(join_starts(verify(graph)))
    names = [node.op.name for node in all_nodes(joined)]
    assert names == ["repeat", "all_reduce", "sin", "multiply"]


def test_a_graph_without_starts_stays_the_same_one() -> None:
    builder = Builder()
    graph = builder.build({"y": ops.sin(builder.input(TensorType((2,), DType.float32), "x"))})
    assert join_starts(graph) is graph
