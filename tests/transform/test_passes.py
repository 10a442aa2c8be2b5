"""The other passes: what they remove, what they replace, what they keep, and that graphs stay sound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import ops
from mithril.engine.kernels import KERNELS
from mithril.errors import BackendError
from mithril.ir import Builder, Graph, Node, Op, Phase, Source, Tensor
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P
from mithril.transform import differentiate, eliminate_dead, expand
from mithril.types import TensorType

from tests.engine.programs import f32, f64, graph_of, on_one
from tests.graphs import BLOCK_PARAMETERS, MEGATRON_BLOCK, block, run, values_for
from tests.tolerances import TOLERANCE

FUSED = {"layer_norm", "layer_norm_gradient", "gelu", "gelu_gradient", "attention",
         "attention_gradient", "softmax", "softmax_gradient"}  # fmt: skip
PRIMITIVE = frozenset(KERNELS) - FUSED


def needed(graph: Graph) -> set[Node]:
    """Return the nodes that a path leads from to an output, found by following operands back."""
    producers, found = graph.producers(), set()
    todo = list(graph.outputs.values())
    while todo:
        node = producers.get(todo.pop())
        if node is not None and node not in found:
            found.add(node)
            todo += node.inputs
    return found


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=12),
    st.lists(st.integers(0, 99), max_size=3),
)
def test_exactly_what_no_output_needs_is_removed(
    steps: list[tuple[int, int]], outputs: list[int]
) -> None:
    builder = Builder()
    made = [builder.input(f32(2), name) for name in ("x", "y", "z")]
    for left, right in steps:
        made.append(made[left % len(made)] * made[right % len(made)])
    graph = builder.build({f"y{n}": made[o % len(made)] for n, o in enumerate(outputs)})
    kept = verify(eliminate_dead(graph))
    wanted = needed(graph)
    assert kept.nodes == tuple(node for node in graph.nodes if node in wanted)
    assert (kept.inputs, kept.outputs) == (graph.inputs, graph.outputs)
    assert eliminate_dead(kept).nodes == kept.nodes


def test_a_node_stays_when_one_of_its_results_is_needed() -> None:
    def first(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        ops.exp(x)
        return ops.layer_norm(x, gain, bias)

    kept = eliminate_dead(graph_of(first, x=f32(2, 3), gain=f32(3), bias=f32(3)))
    (node,) = kept.nodes
    assert node.op.name == "layer_norm"
    assert len(node.outputs) > 1


def test_inputs_that_nobody_uses_stay() -> None:
    kept = eliminate_dead(graph_of(lambda x, unused: x * 2.0, x=f32(2), unused=f32(3)))
    assert [value.name for value in kept.inputs] == ["x", "unused"]


class Odd(Op):
    """An op without expansion and without kernel."""

    name = "odd"

    def infer(self, inputs: list[TensorType]) -> list[TensorType]:
        return inputs


def test_an_op_without_kernel_or_expansion_is_refused() -> None:
    builder = Builder()
    x = builder.input(f32(2), "x")
    with builder.at(scope="head", source=Source("/home/me/model.py", 7)):
        (y,) = builder.apply(Odd(), x)
    text = (
        r"^op 'odd' at 'head' \(model\.py:7\) has no kernel in backend 'this one' and no expansion; "
        r"add a kernel$"
    )
    with pytest.raises(BackendError, match=text):
        expand(builder.build({"y": y}), KERNELS)


def test_a_graph_that_has_all_kernels_is_returned_itself() -> None:
    graph = block()
    assert expand(graph, KERNELS) is graph


def test_an_expansion_keeps_names_of_inputs_outputs_and_values() -> None:
    graph = block()
    expanded = verify(expand(graph, PRIMITIVE))
    assert {node.op.name for node in expanded.nodes} <= PRIMITIVE
    assert [(v.name, v.type) for v in expanded.inputs] == [(v.name, v.type) for v in graph.inputs]
    types = {name: value.type for name, value in expanded.outputs.items()}
    assert types == {name: value.type for name, value in graph.outputs.items()}


def test_a_named_value_keeps_its_name_when_its_op_is_expanded() -> None:
    builder = Builder()
    x = builder.input(f32(2, 3), "x")
    y = builder.assign_name(ops.softmax(x), "weights")
    expanded = expand(builder.build({"y": y * 2.0}), PRIMITIVE)
    assert "weights" in [value.name for value in expanded.values()]


def test_an_expansion_computes_the_same() -> None:
    graph = block()
    values = {n: v for n, v in values_for(graph).items() if not n.startswith("output_gradients")}
    fused, small = on_one(graph, values), on_one(expand(graph, PRIMITIVE), values)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(small["y"], fused["y"], rtol=rtol, atol=atol)


def places(graph: Graph) -> set[tuple[str, str, Phase]]:
    return {(node.scope, str(node.source), node.phase) for node in graph.nodes}


def marked() -> Graph:
    """A fused op and a plain one, each with its scope, source and phase."""
    builder = Builder()
    x = builder.input(f64(2, 3), "x")
    with builder.at(scope="first", source=Source("model.py", 1)):
        y = ops.gelu(x)
    with builder.at(scope="second", source=Source("model.py", 2), phase=Phase.backward):
        z = ops.softmax(y)
    return builder.build({"z": z})


def test_passes_keep_scope_source_and_phase() -> None:
    graph = marked()
    expanded = expand(graph, PRIMITIVE)
    assert len(expanded.nodes) > len(graph.nodes)
    assert places(expanded) == places(eliminate_dead(expanded)) == places(graph)


def test_expanding_copies_other_nodes_with_their_stamp() -> None:
    graph = marked()
    copied = [node for node in expand(graph, PRIMITIVE | {"gelu"}).nodes if node.op.name == "gelu"]
    assert [(n.scope, str(n.source), n.phase) for n in copied] == [
        ("first", "model.py:1", Phase.forward)
    ]


@pytest.mark.parametrize("kernels", [frozenset(KERNELS), PRIMITIVE], ids=["fused", "primitive"])
def test_graphs_stay_sound_after_every_pass(kernels: frozenset[str]) -> None:
    graph = verify(block())
    graph = verify(eliminate_dead(graph))
    graph = verify(expand(graph, kernels))
    graph = verify(differentiate(graph, ["y"], ["x", *BLOCK_PARAMETERS]))
    graph = verify(expand(graph, kernels))
    verify(eliminate_dead(graph))


@pytest.mark.parametrize("kernels", [frozenset(KERNELS), PRIMITIVE], ids=["fused", "primitive"])
def test_a_sharded_program_is_sound_and_its_nodes_know_their_layer(kernels: frozenset[str]) -> None:
    graph = block()
    ran = run(
        graph, Mesh(data=2, tensor=2), values_for(graph), {**MEGATRON_BLOCK, "x": P("data")},
        compute=[*MEGATRON_BLOCK], differentiated=BLOCK_PARAMETERS, kernels=kernels,
    )  # fmt: skip
    program = verify(ran.plan.stages[0].program.graph)
    assert {node.scope for node in graph.nodes} <= {node.scope for node in program.nodes}
    assert {node.phase for node in program.nodes} == {Phase.forward, Phase.backward}
