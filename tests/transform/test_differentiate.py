"""Differentiation: gradients equal finite differences, wherever values are shared or left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import ops
from mithril.engine.kernels import KERNELS
from mithril.errors import GraphError
from mithril.ir import Builder, Graph, Op, Phase, Source, Tensor
from mithril.ir.verify import verify
from mithril.transform import cotangent_name, differentiate, expand, gradient_of
from mithril.types import DType

from tests.engine.programs import f32, f64, graph_of, i32, on_one
from tests.graphs import block, values_for
from tests.tolerances import TOLERANCE

STEP = 4e-4
RTOL, ATOL = TOLERANCE["float64"]
Values = Mapping[str, np.ndarray]


def gradients(graph: Graph, values: Values, outputs: list[str], inputs: list[str]) -> Values:
    """Return gradients by input name, from the seeds among the values."""
    joint = verify(differentiate(graph, outputs, inputs))
    used = {value.name for value in joint.inputs}
    found = on_one(joint, {name: value for name, value in values.items() if name in used})
    return {name: found[gradient_of(name)] for name in inputs}


def differences(graph: Graph, values: Values, outputs: list[str], name: str) -> np.ndarray:
    """Return the slopes of the seeded sum of outputs, by central differences of fourth order."""
    names = [value.name for value in graph.inputs]

    def loss(x: np.ndarray) -> float:
        found = on_one(graph, {n: x if n == name else values[n] for n in names})
        return sum(float(np.sum(found[o] * values[cotangent_name(o)])) for o in outputs)

    slopes = np.zeros(values[name].shape)
    for at in np.ndindex(slopes.shape):
        step = np.zeros(slopes.shape)
        step[at] = STEP
        near = loss(values[name] + step) - loss(values[name] - step)
        far = loss(values[name] + 2 * step) - loss(values[name] - 2 * step)
        slopes[at] = (8 * near - far) / (12 * STEP)
    return slopes


def check(graph: Graph, outputs: list[str], inputs: list[str]) -> None:
    values = values_for(graph)
    found = gradients(graph, values, outputs, inputs)
    for name in inputs:
        expected = differences(graph, values, outputs, name)
        np.testing.assert_allclose(found[name], expected, rtol=RTOL, atol=ATOL, err_msg=name)


def twice_used(x: Tensor, w: Tensor) -> Tensor:
    shared = ops.tanh(x @ w)
    return shared * shared + ops.exp(shared) * ops.sum(shared) + x


def diamond(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    shared = ops.sin(x) * w
    return shared @ w, ops.mean(shared, 0) + w[0] * 3.0


def pieces(x: Tensor, w: Tensor) -> Tensor:
    return ops.concatenate([x[:, 1:], w[1:, :2], x[:1, :2]], 0).reshape(2, -1)


def chosen(x: Tensor, w: Tensor) -> Tensor:
    return ops.where(x > w, x * w, ops.tanh(x)) + w


GRAPHS: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "shared": twice_used,
    "diamond": diamond,
    "the square of an input": lambda x, w: x * x * w,
    "an input twice in one op": lambda x, w: (x + x) @ (w @ w),
    "broadcast": lambda x, w: (x[0] + ops.mean(w)) * x,
    "pieces": pieces,
    "chosen": chosen,
}


@pytest.mark.parametrize("case", GRAPHS)
def test_gradients_equal_finite_differences(case: str) -> None:
    graph = graph_of(GRAPHS[case], x=f64(3, 3), w=f64(3, 3))
    check(graph, list(graph.outputs), ["x", "w"])


MIXES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: 0.5 * (a + b),
    lambda a, b: a * b,
    lambda a, b: 0.5 * (a - ops.tanh(b)),
    lambda a, b: ops.sin(a) / (1.5 + b * b),
    lambda a, b: (a.reshape(2, 3) @ ops.tanh(b).reshape(3, 2)).reshape(2, 2)[:, :1] + ops.cos(b),
    lambda a, b: ops.softmax(a.reshape(3, 2)).reshape(2, 3) * b,
    lambda a, b: ops.gelu(a) - ops.mean(b, 1, keepdims=True),
]
mixes = st.lists(
    st.tuples(st.integers(0, len(MIXES) - 1), st.integers(0, 99), st.integers(0, 99)),
    min_size=1, max_size=6,
)  # fmt: skip


@given(mixes, st.integers(0, 99))
def test_gradients_of_random_graphs_equal_finite_differences(
    steps: list[tuple[int, int, int]], second: int
) -> None:
    def mixed(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = [x, w]
        for mix, left, right in steps:
            made.append(MIXES[mix](made[left % len(made)], made[right % len(made)]))
        return made[-1], made[second % len(made)]

    check(graph_of(mixed, x=f64(2, 3), w=f64(2, 3)), ["y0", "y1"], ["x", "w"])


def test_stopped_gradients_do_not_flow() -> None:
    graph = graph_of(lambda x: ops.stop_gradient(x) * x, x=f64(3))
    values = values_for(graph)
    found = gradients(graph, values, ["y"], ["x"])
    np.testing.assert_array_equal(found["x"], values["x"] * values[cotangent_name("y")])


def test_an_unused_input_has_zeros_of_its_type() -> None:
    graph = graph_of(lambda x, w: x * 2.0, x=f64(3), w=f32(2, 4))
    found = gradients(graph, values_for(graph), ["y"], ["w", "x"])
    np.testing.assert_array_equal(found["w"], np.zeros((2, 4), np.float32), strict=True)
    assert found["x"].any()


def test_an_input_used_through_integers_only_has_zeros() -> None:
    graph = graph_of(lambda x, w: x * ops.cast(ops.argmax(w, 1), "float64"), x=f64(3), w=f64(3, 2))
    found = gradients(graph, values_for(graph), ["y"], ["w"])
    np.testing.assert_array_equal(found["w"], np.zeros((3, 2)), strict=True)


def test_outputs_without_a_gradient_count_as_zero() -> None:
    graph = graph_of(lambda x: (x * x, ops.exp(x), ops.sin(x)), x=f64(3))
    for given_outputs in (["y1"], ["y0", "y2"], ["y2", "y1", "y0"]):
        check(graph, given_outputs, ["x"])


def test_only_the_gradients_asked_for_are_made() -> None:
    graph = graph_of(lambda x, w: x @ w, x=f64(2, 3), w=f64(3, 4))
    joint = differentiate(graph, ["y"], ["w"])
    assert list(joint.outputs) == ["y", "gradients.w"]
    assert [value.name for value in joint.inputs] == ["x", "w", "output_gradients.y"]
    assert sum(node.op.name == "einsum" for node in joint.nodes) == 2


def test_an_output_that_is_an_input_passes_its_gradient_on() -> None:
    check(graph_of(lambda x: (x, x * x), x=f64(2)), ["y0", "y1"], ["x"])


def test_a_value_that_is_two_outputs_sums_their_gradients() -> None:
    def same(x: Tensor) -> tuple[Tensor, Tensor]:
        y = ops.tanh(x)
        return y, y

    graph = graph_of(same, x=f64(2))
    check(graph, ["y0", "y1"], ["x"])
    joint = differentiate(graph, ["y0", "y1"], ["x"])
    assert {node.phase for node in joint.nodes[len(graph.nodes) :]} == {Phase.backward}


def test_forward_nodes_stay_as_they_are() -> None:
    graph = block()
    joint = differentiate(graph, ["y"], ["x", "up.weight"])
    forward, backward = joint.nodes[: len(graph.nodes)], joint.nodes[len(graph.nodes) :]
    assert forward == graph.nodes
    assert backward
    assert {node.phase for node in backward} == {Phase.backward}


def test_backward_nodes_have_the_scope_and_source_of_what_they_differentiate() -> None:
    builder = Builder()
    x = builder.input(f64(3), "x")
    with builder.at(scope="head", source=Source("model.py", 7)):
        y = ops.tanh(x)
    joint = differentiate(builder.build({"y": y}), ["y"], ["x"])
    found = {(n.scope, str(n.source)) for n in joint.nodes if n.phase == Phase.backward}
    assert found == {("head", "model.py:7")}


FUSED = {
    "gelu": lambda x, w: ops.gelu(x) @ w,
    "softmax": lambda x, w: ops.softmax(x) @ w,
    "layer_norm": lambda x, w: ops.layer_norm(x, w[0], w[1]),
    "attention": lambda x, w: ops.attention(*[(x @ w).reshape(1, 4, 2, 2)] * 3, causal=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_ops_and_their_expansions_have_the_same_gradients(name: str) -> None:
    graph = graph_of(FUSED[name], x=f64(4, 4), w=f64(4, 4))
    expanded = verify(expand(graph, set(KERNELS) - {name}))
    assert name not in {node.op.name for node in expanded.nodes}
    values = values_for(graph)
    fused, small = (gradients(g, values, ["y"], ["x", "w"]) for g in (graph, expanded))
    for wanted in ("x", "w"):
        np.testing.assert_allclose(small[wanted], fused[wanted], rtol=RTOL, atol=ATOL)


def test_an_integer_output_is_refused() -> None:
    graph = graph_of(lambda x: ops.argmax(x, 0), x=f64(3))
    with pytest.raises(GraphError, match=r"^output 'y' has dtype int\d+; gradients need a float"):
        differentiate(graph, ["y"], ["x"])


def test_integer_inputs_are_refused() -> None:
    graph = graph_of(lambda x, i, j: x * ops.cast(i + j, "float64"), x=f64(3), i=i32(3), j=i32(3))
    text = (
        "inputs 'i', 'j' have dtype int32; gradients need a float dtype; cast to one, or leave it "
        "out of what is differentiated"
    )
    with pytest.raises(GraphError, match=f"^{text}$"):
        differentiate(graph, ["y"], ["x", "i", "j"])


def test_an_op_whose_gradient_has_another_type_is_named() -> None:
    class Wrong(Op):
        name = "wrong"

        def infer(self, inputs):
            return inputs

        def gradient(self, inputs, outputs, cotangents):
            return [ops.sum(cotangents[0])]

    graph = graph_of(lambda x: x.builder.apply(Wrong(), x)[0], x=f64(3))
    text = r"gradient of Value\(x: float64\[3\]\) has type float64\[\]; please report this op"
    with pytest.raises(GraphError, match=text):
        differentiate(graph, ["y"], ["x"])


def test_names_of_gradients_are_fixed() -> None:
    assert (cotangent_name("y"), gradient_of("up.weight")) == (
        "output_gradients.y",
        "gradients.up.weight",
    )


def test_gradients_have_the_dtype_of_their_input() -> None:
    graph = graph_of(lambda x, w: ops.cast(x, "float64") * w, x=f32(3), w=f64(3))
    joint = differentiate(graph, ["y"], ["x", "w"])
    assert joint.outputs["gradients.x"].type.dtype == DType.float32
    assert joint.outputs["gradients.w"].type.dtype == DType.float64
