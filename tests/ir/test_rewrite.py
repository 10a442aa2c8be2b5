"""Going through graphs and rewriting them: what a pass gets done for it, in bodies too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import ops
from mithril.errors import GraphError
from mithril.ir import (
    Builder,
    Cause,
    Checkpoint,
    Graph,
    Node,
    Op,
    Phase,
    Source,
    Tensor,
    Tensors,
    Types,
    Value,
)
from mithril.ir.printer import print_graph
from mithril.ir.rewrite import (
    all_nodes,
    copy_graph,
    inline,
    is_alike,
    keep,
    map_bodies,
    regions,
    rewrite,
    unroll,
    walk,
)
from mithril.ir.serialize import graph_to_json
from mithril.ir.verify import verify
from mithril.types import DType, TensorType

from tests.graphs import on_one_device, values_for

F64 = TensorType((3,), DType.float64)
UNARY = (ops.negate, ops.sin, ops.tanh, ops.relu)
BINARY = (ops.add, ops.multiply, ops.maximum)


# ------------------------------------------------------------------ graphs to rewrite


def pick(draw: st.DrawFn, tensors: Sequence[Tensor]) -> Tensor:
    return tensors[draw(st.integers(0, len(tensors) - 1))]


def grow(draw: st.DrawFn, builder: Builder, tensors: list[Tensor], depth: int) -> None:
    """Append a few random nodes; loops and checkpoints hold more of them, down to a depth."""
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(("unary", "binary", "loop", "checkpoint")[: 4 if depth else 2]))
        scope = draw(st.sampled_from(("", "up", "blocks.attn")))
        source = draw(st.sampled_from((None, Source("model.py", 7))))
        phase = draw(st.sampled_from(tuple(Phase)))
        with builder.at(scope=scope, source=source, phase=phase):
            if kind == "unary":
                made = draw(st.sampled_from(UNARY))(pick(draw, tensors))
            elif kind == "binary":
                made = draw(st.sampled_from(BINARY))(pick(draw, tensors), pick(draw, tensors))
            elif kind == "checkpoint":
                made = checkpoint(draw, builder, tensors, depth)
            else:
                made = loop(draw, builder, tensors, depth)
        tensors.append(builder.assign_name(made, draw(st.sampled_from(("", "hidden", "y")))))


def checkpoint(draw: st.DrawFn, builder: Builder, tensors: list[Tensor], depth: int) -> Tensor:
    inner = Builder()
    inside = [inner.input(F64, f"x{i}") for i in range(2)]
    grow(draw, inner, inside, depth - 1)
    body = inner.build({"y": inside[-1]})
    return builder.apply(Checkpoint(body), *(pick(draw, tensors) for _ in range(2)))[0]


def loop(draw: st.DrawFn, builder: Builder, tensors: list[Tensor], depth: int) -> Tensor:
    count = draw(st.integers(1, 3))
    stacked = ops.broadcast_to(pick(draw, tensors), (count, *F64.shape))
    outer = pick(draw, tensors)

    def step(x: Tensor, slice: Tensor) -> tuple[Tensor, Tensor]:
        inside = [x, slice, outer + x]
        grow(draw, x.builder, inside, depth - 1)
        return inside[-1], inside[-2]

    last, made = ops.repeat(
        step, pick(draw, tensors), stacked=[stacked], reverse=draw(st.booleans())
    )
    return last + ops.sum(made, 0)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    builder = Builder()
    tensors = [builder.input(F64, name) for name in ("a", "b")]
    grow(draw, builder, tensors, depth=2)
    return verify(builder.build({"last": tensors[-1], "some": pick(draw, tensors)}))


def nested(outer: int = 2, inner: int = 3) -> Graph:
    """A loop in a loop: the inner one adds a slice, the outer one an invariant."""
    builder = Builder()
    x, w = builder.input(F64, "x"), builder.input(TensorType((outer, inner, 3), F64.dtype), "w")
    shared = builder.input(F64, "shared")

    def step(x: Tensor, rows: Tensor) -> Tensor:
        y: Tensor = ops.repeat(lambda x, row: ops.exp(x) + row, x, stacked=[rows])
        return y * shared

    return builder.build({"y": ops.repeat(step, x, stacked=[w])})


@dataclass(frozen=True)
class Either(Op):
    """A user's op with two bodies."""

    name: ClassVar[str] = "either"
    one: Graph
    other: Graph

    def infer(self, inputs: Types) -> Types:
        assert [v.type for v in self.one.inputs] == list(inputs)
        assert [v.type for v in self.other.inputs] == list(inputs)
        return [value.type for value in self.one.outputs.values()]

    @property
    def bodies(self) -> tuple[Graph, ...]:
        return (self.one, self.other)

    def with_bodies(self, bodies: Sequence[Graph]) -> Op:
        one, other = bodies
        return replace(self, one=one, other=other)


def either() -> Graph:
    def branch(function: object) -> Graph:
        builder = Builder()
        return builder.build({"y": function(builder.input(F64, "x"))})  # type: ignore[operator]

    builder = Builder()
    (y,) = builder.apply(
        Either(branch(ops.exp), branch(lambda x: ops.exp(ops.negate(x)))), builder.input(F64, "x")
    )
    return builder.build({"y": y})


def names(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in all_nodes(graph))


def values(graph: Graph) -> set[Value]:
    return {value for region in regions(graph) for value in region.graph.values()}


# ------------------------------------------------------------------ what a pass gets done


@given(graphs())
def test_a_visit_that_changes_nothing_gives_an_equal_graph_of_other_values(graph: Graph) -> None:
    before = print_graph(graph)
    found = verify(rewrite(graph, keep))
    assert print_graph(found) == print_graph(graph) == before
    assert graph_to_json(found) == graph_to_json(graph)  # stamps and causes, too
    assert not values(found) & values(graph)


@given(graphs())
def test_what_takes_a_nodes_place_computes_what_it_returns_and_bears_its_stamp(
    graph: Graph,
) -> None:
    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return [operands[0] * -1.0] if isinstance(node.op, ops.Negate) else None

    before = print_graph(graph)
    found = verify(rewrite(graph, visit))
    assert "negate" not in names(found)
    stamps = {(n.scope, n.source, n.phase) for n in all_nodes(graph)}
    assert {(n.scope, n.source, n.phase) for n in all_nodes(found)} <= stamps
    assert print_graph(graph) == before
    numbers = values_for(graph)
    expected, results = (on_one_device(g, numbers, ()) for g in (graph, found))
    for name, value in expected.items():
        np.testing.assert_array_equal(results[name], value)


def test_stamps_and_names_are_those_of_the_node() -> None:
    builder = Builder()
    x = builder.input(F64, "x")
    cause = Cause("x", "here", "there", "head")
    with builder.at(scope="head", source=Source("m.py", 3), phase=Phase.backward, cause=cause):
        y = builder.assign_name(ops.exp(x), "logits")
    graph = builder.build({"y": y})

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors:
        return [ops.sin(ops.negate(operands[0]))]

    found = rewrite(graph, visit)
    assert [value.name for value in found.values()] == ["x", "", "logits"]
    assert {(n.scope, n.source, n.phase, n.cause) for n in found.nodes} == {
        ("head", Source("m.py", 3), Phase.backward, cause)
    }
    assert rewrite(graph, keep).nodes[0].cause == cause


def test_in_a_body_the_stamp_of_the_op_around_it_does_not_count() -> None:
    inner, builder = Builder(), Builder()
    body = inner.build({"y": ops.exp(inner.input(F64, "x"))})
    with builder.at(scope="blocks", source=Source("m.py", 3), phase=Phase.backward):
        (y,) = builder.apply(Checkpoint(body), builder.input(F64, "x"))

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return [ops.sin(operands[0])] if isinstance(node.op, ops.Exp) else None

    (node,) = rewrite(builder.build({"y": y}), visit).nodes
    (inside,) = node.op.bodies[0].nodes
    assert (node.scope, str(node.source), node.phase) == ("blocks", "m.py:3", Phase.backward)
    assert (inside.scope, inside.source, inside.phase) == ("", None, Phase.forward)


def test_a_pass_may_leave_a_node_out() -> None:
    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return operands if isinstance(node.op, ops.Exp) else None

    found = verify(rewrite(nested(), visit))
    assert names(found) == {"repeat": 2, "add": 1, "multiply": 1}


def test_a_pass_that_returns_another_number_of_results_is_told_so() -> None:
    builder = Builder()
    with builder.at(scope="head"):
        y = ops.exp(builder.input(F64, "x"))
    graph = builder.build({"y": y})
    with pytest.raises(GraphError) as raised:
        rewrite(graph, lambda builder, node, operands: [*operands, *operands])
    assert str(raised.value) == (
        "op 'exp' at 'head' has 1 results, the pass puts 2 in their place; return one tensor for "
        "each"
    )


def test_a_graph_is_appended_twice_and_shares_nothing() -> None:
    graph, builder = nested(), Builder()
    operands = [builder.input(value.type, value.name) for value in graph.inputs]
    first = inline(graph, builder, operands)["y"]
    second = inline(graph, builder, [first, *operands[1:]])["y"]
    found = verify(builder.build({"y": second}))
    assert len({id(node) for node in all_nodes(found)}) == 2 * len(list(all_nodes(graph)))
    bodies = [value for region in regions(found) for value in region.graph.values()]
    assert len(bodies) == len(set(bodies))


# ------------------------------------------------------------------ bodies


def test_a_body_may_use_what_is_around_it_which_becomes_an_operand() -> None:
    graph = nested()
    builder = Builder()
    operands = [builder.input(value.type, value.name) for value in graph.inputs]
    scale = builder.input(F64, "scale")

    def visit(inner: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return [operands[0] * scale] if isinstance(node.op, ops.Exp) else None

    found = verify(builder.build(inline(graph, builder, operands, visit)))
    (outside,) = found.nodes
    (inside, _) = outside.op.bodies[0].nodes
    assert [value.name for value in outside.inputs] == ["x", "shared", "scale", "w"]
    assert [value.name for value in inside.op.bodies[0].inputs][:2] == ["carry_0", "scale"]
    assert inside.op.slices == inside.op.bodies[0].inputs[2:]
    numbers = values_for(found)
    y = numbers["x"]
    for rows in numbers["w"]:
        for row in rows:
            y = y * numbers["scale"] + row
        y = y * numbers["shared"]
    np.testing.assert_allclose(on_one_device(found, numbers, ())["y"], y)


def test_ops_of_users_with_bodies_are_gone_into() -> None:
    graph = verify(either())
    assert names(graph) == {"either": 1, "exp": 2, "negate": 1}
    assert "negate" in print_graph(graph)
    assert print_graph(copy_graph(graph)) == print_graph(graph)

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return [ops.sin(operands[0])] if isinstance(node.op, ops.Exp) else None

    assert names(verify(rewrite(graph, visit))) == {"either": 1, "sin": 2, "negate": 1}


def test_what_one_body_uses_from_around_it_all_bodies_take() -> None:
    graph, builder = either(), Builder()
    x, scale = builder.input(F64, "x"), builder.input(F64, "scale")

    def visit(inner: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return [operands[0] * scale] if isinstance(node.op, ops.Negate) else None

    (node,) = verify(builder.build(inline(graph, builder, [x], visit))).nodes
    assert [value.name for value in node.inputs] == ["x", "scale"]
    assert [[v.name for v in body.inputs] for body in node.op.bodies] == [["x", "scale"]] * 2


def test_an_ill_formed_body_is_found_wherever_it_is() -> None:
    good = either()
    (node,) = good.nodes
    stray = Graph(node.op.bodies[0].inputs, (), {"y": Value(F64, "stray")})
    op = node.op.with_bodies([node.op.bodies[0], stray])
    with pytest.raises(GraphError, match="output 'y' of the graph is never defined"):
        verify(replace(good, nodes=(replace(node, op=op),)))


def test_bodies_are_mapped_and_nodes_without_stay() -> None:
    (outside,) = nested().nodes
    (inside, product) = outside.op.bodies[0].nodes
    assert map_bodies(product, copy_graph) is product
    assert map_bodies(inside, lambda body: body).op == inside.op
    emptied = map_bodies(outside, lambda body: Graph(body.inputs, (), {}))
    assert list(all_nodes(emptied)) == [emptied]
    assert (emptied.inputs, emptied.outputs) == (outside.inputs, outside.outputs)


# ------------------------------------------------------------------ reading


def test_a_walk_tells_how_often_nodes_run() -> None:
    found = [(node.op.name, times) for node, times in walk(nested(2, 3))]
    assert found == [("repeat", 1), ("repeat", 2), ("exp", 6), ("add", 6), ("multiply", 2)]
    assert [times for _, times in walk(nested(2, 3).nodes[0], 5)] == [5, 10, 30, 30, 10]


@given(graphs())
def test_graphs_are_alike_as_long_as_no_node_is_another_one(graph: Graph) -> None:
    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return [ops.tanh(operands[0])] if isinstance(node.op, ops.Negate) else None

    assert is_alike(graph, copy_graph(graph))
    assert is_alike(graph, rewrite(graph, visit)) == ("negate" not in names(graph))
    assert not graph.nodes or not is_alike(graph, replace(graph, nodes=graph.nodes[:-1]))


def test_graphs_are_alike_only_with_the_same_operands_types_results_and_bodies() -> None:
    def subtract(*order: str, type: TensorType = F64, result: str = "z") -> Graph:
        builder = Builder()
        given = {name: builder.input(type, name) for name in ("x", "y")}
        return builder.build({result: ops.subtract(*(given[name] for name in order))})

    assert is_alike(subtract("x", "y"), subtract("x", "y"))
    assert not is_alike(subtract("x", "y"), subtract("y", "x"))
    assert not is_alike(subtract("x", "y"), subtract("x", "y", result="out"))
    assert not is_alike(subtract("x", "y"), subtract("x", "y", type=TensorType((2,), F64.dtype)))
    assert is_alike(nested(2, 3), nested(2, 3))
    assert not is_alike(nested(2, 3), nested(2, 4))
    outside = either()
    (node,) = outside.nodes
    turned = replace(node, op=node.op.with_bodies(node.op.bodies[::-1]))
    assert not is_alike(outside, replace(outside, nodes=(turned,)))


@given(graphs())
def test_unrolled_nodes_are_those_of_a_walk_as_often_as_they_run(graph: Graph) -> None:
    expected = Counter({node: times for node, times in walk(graph) if not node.op.bodies})
    assert Counter(unroll(graph)) == expected
    assert [node for node, _ in walk(graph)] == list(all_nodes(graph))
    inside = [node for region in regions(graph) for node in region.graph.nodes]
    assert set(inside) == set(all_nodes(graph))
    assert len(inside) == len(list(all_nodes(graph)))


def test_unrolled_nodes_run_in_that_order() -> None:
    body = ["exp", "add"] * 3 + ["multiply"]
    assert [node.op.name for node in unroll(nested(2, 3))] == body * 2


def test_regions_are_the_graph_and_its_bodies_outermost_first() -> None:
    graph = nested(2, 3)
    body = graph.nodes[0].op.bodies[0]
    inner = body.nodes[0].op.bodies[0]
    assert [(region.graph, region.times) for region in regions(graph)] == [
        (graph, 1), (body, 2), (inner, 6),
    ]  # fmt: skip


def test_uses_are_nodes_and_positions_in_order() -> None:
    builder = Builder()
    x, y = builder.input(F64, "x"), builder.input(F64, "y")
    graph = builder.build({"z": ops.add(x, x) * y})
    add, multiply = graph.nodes
    assert graph.uses() == {
        x.value: [(add, 0), (add, 1)],
        add.outputs[0]: [(multiply, 0)],
        y.value: [(multiply, 1)],
    }
