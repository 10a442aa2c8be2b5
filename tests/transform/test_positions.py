"""Ops compute what is read of them: the same values and gradients, and never more work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.ir import Builder, Graph, Tensor
from mithril.ir.rewrite import all_nodes, inline, walk
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P
from mithril.ops.constrain import apply_constraint
from mithril.ops.context import CONTEXTS
from mithril.transform import compute_read_positions, differentiate
from mithril.types import DType, TensorType

from tests.engine.programs import f32, f64, graph_of, on_one
from tests.graphs import BLOCK_PARAMETERS, MEGATRON_BLOCK, block, run, values_for
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

B, S, D = 2, 6, 4
STEPS: dict[str, Callable[..., Any]] = {
    "gelu": lambda x, w: ops.gelu(x),
    "linear": lambda x, w: ops.einsum("bsd,ed->bse", x, w),
    "across positions": lambda x, w: ops.einsum("bsd,btd->bst", x, x) @ x,
    "norm": lambda x, w: ops.layer_norm(x, w[0], w[1]),
    "softmax of positions": lambda x, w: ops.softmax(x, 1),
    "softmax of features": lambda x, w: ops.softmax(x, 2),
    "attention": lambda x, w: attend(x, causal=False),
    "causal attention": lambda x, w: attend(x, causal=True),
    "turned": lambda x, w: ops.rope(x.reshape(B, S, 2, D // 2)).reshape(B, S, D),
    "in other shapes": lambda x, w: ops.tanh(x.reshape(B * S, D)).reshape(B, S, D),
    "merged": lambda x, w: ops.tanh(x.reshape(B, S * D)).reshape(B, S, D),
    "transposed": lambda x, w: ops.transpose(ops.exp(ops.transpose(x, (1, 2, 0))), (2, 0, 1)),
    "sum of positions": lambda x, w: x + ops.sum(x, 1, keepdims=True),
    "counted": lambda x, w: x * ops.cast(ops.iota(x, x.shape, 1), x.dtype),
    "flipped": lambda x, w: ops.flip(x, (1,)),
    "running sum": lambda x, w: ops.cumsum(x, 1),
    "every other": lambda x, w: x + ops.concatenate([x[:, ::2], x[:, 1::2]], 1),
}  # fmt: skip


def attend(x: Any, *, causal: bool) -> Any:
    """Mix positions by attention of two heads."""
    heads = x.reshape(B, S, 2, D // 2)
    return ops.attention(heads, ops.sin(heads), heads, causal=causal).reshape(B, S, D)


@st.composite
def parts_of(draw: st.DrawFn) -> tuple[int | slice, ...]:
    """Draw an index: a slice, or one position, of each of the first dimensions."""
    index: list[int | slice] = []
    for size in (B, S, D)[: draw(st.integers(1, 3))]:
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        others = [slice(None), slice(start, stop, draw(st.integers(1, 3)))]
        index.append(draw(st.sampled_from([start, *others])))
    return tuple(index)


@st.composite
def graphs_that_read_parts(draw: st.DrawFn) -> Graph:
    """Draw a graph of which slices of one or two tensors are read."""
    builder = Builder()
    made: list[Any] = [builder.input(f64(B, S, D), "x")]
    w = builder.input(f64(D, D), "w")
    for _ in range(draw(st.integers(1, 6))):
        x = draw(st.sampled_from(made[-2:]))
        step = STEPS[draw(st.sampled_from(sorted(STEPS)))]
        y = ops.tanh(step(x, w))
        made.append(y + made[-1] if draw(st.booleans()) else y)
    count = draw(st.integers(1, 2))
    read = [ops.sin(draw(st.sampled_from(made[-2:]))[draw(parts_of())]) for _ in range(count)]
    if draw(st.booleans()):
        read[0] = ops.exp(read[0])[0] if read[0].ndim else read[0]
    return builder.build({f"y{n}": y for n, y in enumerate(read)})


def values_of(graph: Graph) -> dict[str, np.ndarray]:
    """Return outputs, and gradients by inputs, of a graph as it is, on one device."""
    names = [value.name for value in graph.inputs]
    return on_one(differentiate(graph, list(graph.outputs), names), values_for(graph))


def flops_of(graph: Graph) -> int:
    """Return the arithmetic of a graph."""
    return sum(times * node.cost().flops for node, times in walk(graph) if not node.op.bodies)


def names_of(graph: Graph) -> list[str]:
    """Return the names of the ops of a graph, bodies included."""
    return [node.op.name for node in all_nodes(graph)]


def shapes_of(graph: Graph, name: str) -> list[tuple[int, ...]]:
    """Return the shapes of the first results of ops of a name."""
    return [node.outputs[0].type.shape for node in all_nodes(graph) if node.op.name == name]


@pytest.mark.slow
@settings(max_examples=scaled(200))
@given(graphs_that_read_parts())
def test_values_and_gradients_stay_and_arithmetic_never_grows(graph: Graph) -> None:
    moved = verify(compute_read_positions(graph))
    assert flops_of(moved) <= flops_of(graph)
    assert flops_of(moved) < flops_of(graph) or moved is graph
    assert [x.name for x in moved.inputs] == [x.name for x in graph.inputs]
    expected, found = values_of(graph), values_of(moved)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, *TOLERANCE["float64"], err_msg=name)


@settings(max_examples=scaled(60))
@given(graphs_that_read_parts(), st.sampled_from([P("a"), P(None, "a"), P("a", "b"), P()]))
def test_plans_on_a_mesh_compute_what_one_device_does(graph: Graph, spec: P) -> None:
    names = [value.name for value in graph.inputs]
    values, mesh = values_for(graph), Mesh(a=2, b=2)
    found = run(graph, mesh, values, {"x": spec}, differentiated=names)
    for name, value in values_of(graph).items():
        np.testing.assert_allclose(found.outputs[name], value, *TOLERANCE["float64"], err_msg=name)
    assert found.executed == list(found.plan.list_issued())


# ------------------------------------------------------------------ a block that is read in part


def read_of_block(index: Any) -> Graph:
    """Return the graph of a part of what a block with causal attention makes."""
    whole, builder = block(), Builder()
    inputs = [builder.input(value.type, value.name) for value in whole.inputs]
    return builder.build({"y": inline(whole, builder, inputs)["y"][index]})


def test_of_the_last_position_a_block_computes_keys_and_values_of_all_others() -> None:
    moved = compute_read_positions(read_of_block((slice(None), -1)))
    assert shapes_of(moved, "attention") == [(2, 1, 4, 8)]
    assert shapes_of(moved, "gelu") == [(2, 1, 64)]
    products = shapes_of(moved, "einsum")
    assert products.count((2, 8, 32)) == 2  # of keys and of values
    assert products.count((2, 1, 32)) == 3  # of the query, behind attention, and behind the gelu
    assert shapes_of(moved, "slice") == [(2, 1, 32)] * 2  # of what is normalised, and of the input


def test_causal_attention_makes_the_first_position_with_all_others() -> None:
    moved = compute_read_positions(read_of_block((slice(None), 0)))
    assert shapes_of(moved, "attention") == [(2, 8, 4, 8)]
    assert shapes_of(moved, "gelu") == [(2, 1, 64)]


@pytest.mark.parametrize("index", [(slice(None), -1), (slice(None), 0), (0,), (0, slice(2, 4))])
@pytest.mark.parametrize("specs", [{}, MEGATRON_BLOCK, {"x": P(None, "tensor")}, {"x": P("data")}])
def test_a_block_on_a_mesh_is_that_of_one_device(index: Any, specs: dict[str, P]) -> None:
    graph = read_of_block(index)
    values, names = values_for(graph), ("x", *BLOCK_PARAMETERS)
    expected = on_one(differentiate(graph, ["y"], names), values)
    found = run(
        graph, Mesh(data=2, tensor=2), values, specs, compute=specs.keys() - {"x"},
        differentiated=names,
    )  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(found.outputs[name], value, *TOLERANCE["float32"], err_msg=name)
    assert found.executed == list(found.plan.list_issued())


# ------------------------------------------------------------------ what stays as it is


def take_two(x: Any) -> tuple[Any, Any]:
    """Return two positions of a tensor."""
    return x[:, 0], x[:, 1]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: take_two(ops.exp(x)),
        lambda x: ops.exp(x)[:, 1:],
        lambda x: ops.softmax(x, 1)[:, 0],
        lambda x: ops.sum(x, 1)[..., None] * 1.0,
        lambda x: x.reshape(B, D, S).transpose(0, 2, 1)[:, 0],
        lambda x: ops.exp(x[:, 0]),
        lambda x: ops.cumsum(x, 1)[:, -1],
        lambda x: ops.exp(x)[:, 0:0],
    ],
    ids=[
        "all", "more than half", "read across", "no slice", "only moved", "nothing made", "sums",
        "nothing",
    ],
)  # fmt: skip
def test_graphs_that_save_no_arithmetic_stay_the_same(read: Callable[..., Any]) -> None:
    graph = graph_of(read, x=f32(B, S, D))
    assert compute_read_positions(graph) is graph


def test_what_is_read_twice_in_different_parts_is_computed_once() -> None:
    def read(x: Tensor) -> tuple[Tensor, Tensor]:
        y = ops.exp(x)
        return y[:, 0], ops.sin(y)[:, 1]

    moved = compute_read_positions(graph_of(read, x=f32(B, S, D)))
    assert shapes_of(moved, "exp") == [(B, S, D)]
    assert shapes_of(moved, "sin") == [(B, 1, D)]


def test_an_output_of_the_graph_is_computed_whole() -> None:
    def read(x: Tensor) -> tuple[Tensor, Tensor]:
        y = ops.exp(x)
        return y, ops.sin(y)[:, 0]

    moved = compute_read_positions(graph_of(read, x=f32(B, S, D)))
    assert moved.outputs["y0"].type.shape == (B, S, D)
    assert shapes_of(moved, "sin") == [(B, 1, D)]


def test_random_numbers_are_those_of_their_positions() -> None:
    def read(x: Tensor, seed: Tensor) -> Tensor:
        kept = ops.cast(ops.random_bits(seed, x.shape, width=24), x.dtype) > 2.0**23
        return ops.where(kept, ops.exp(x), 0.0)[:, -1]

    seeded = TensorType((), DType.uint32)
    graph = graph_of(read, x=f32(B, S, D), seed=seeded)
    moved = compute_read_positions(graph)
    assert shapes_of(moved, "exp") == [(B, 1, D)]
    assert shapes_of(moved, "random_bits") == [(B, S, D)]
    values = values_for(graph)
    np.testing.assert_array_equal(on_one(moved, values)["y"], on_one(graph, values)["y"])


@pytest.mark.parametrize("kind", list(filter(None, CONTEXTS)))
def test_attention_over_a_split_sequence_keeps_all_queries(kind: str) -> None:
    def read(x: Tensor) -> Tensor:
        return ops.exp(ops.attention(x, x, x, context_parallel=kind))[:, -1]

    moved = compute_read_positions(graph_of(read, x=f32(2, 8, 4, 2)))
    (attention,) = (node for node in moved.nodes if "attention" in node.op.name)
    assert attention.outputs[0].type.shape == (2, 8, 4, 2)
    assert shapes_of(moved, "exp") == [(2, 1, 4, 2)]


def test_a_constraint_says_how_all_positions_lie() -> None:
    def read(x: Tensor) -> Tensor:
        return ops.exp(apply_constraint(ops.sin(x), P(None, "a")))[:, 0]

    moved = compute_read_positions(graph_of(read, x=f32(B, S, D)))
    assert shapes_of(moved, "exp") == [(B, 1, D)]
    assert shapes_of(moved, "sin") == [(B, S, D)]


def test_the_body_of_a_loop_computes_what_it_reads() -> None:
    def function(x: ml.Array) -> ml.Array:
        def body(carry: Any, _: Any) -> tuple[Any, Any]:
            return carry + ml.numpy.exp(carry)[:1], None

        return ml.scan(body, x, None, length=3)[0]

    found = ml.jit(function, backend=ml.NumpyBackend())
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    expected = x
    for _ in range(3):
        expected = expected + np.exp(expected)[:1]
    np.testing.assert_allclose(found(x).numpy(), expected, *TOLERANCE["float32"])
    (stage,) = found.plan(x).stages
    assert shapes_of(stage.program.graph, "exp") == [(1, 3)]
