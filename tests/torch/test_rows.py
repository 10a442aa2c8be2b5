"""Programs on rows: the same numbers with fewer views; which ops are done so, and which are not."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril.cli.gpt import Sizes, gpt, with_loss
from mithril.ir import Graph, Node, Value
from mithril.ops import Add, Broadcast, LayerNorm, Reshape, Sum, Transpose
from mithril.ops.linalg import Einsum
from mithril.types import DType, TensorType
from mithril_torch.program.flatten_batch_dims import flatten_batch_dims

SIZES = Sizes(layers=2, width=8, heads=2, hidden=12, context=4, batch=3)


def tensor(*shape: int, name: str = "") -> Value:
    return Value(TensorType(shape, DType.float32), name)


def applied(op: object, *inputs: Value) -> Node:
    types = op.infer([x.type for x in inputs])
    return Node(op, inputs, tuple(Value(type) for type in types))


def graph_of(*nodes: Node) -> Graph:
    made = {value for node in nodes for value in node.outputs}
    inputs = dict.fromkeys(x for node in nodes for x in node.inputs if x not in made)
    return Graph(tuple(inputs), nodes, {"y": nodes[-1].outputs[0]})


def written(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    return [(node.op.name, node.outputs[0].type.shape) for node in flatten_batch_dims(graph).nodes]


def test_a_chain_of_layers_is_viewed_at_its_ends_only():
    x, w = tensor(2, 3, 4), tensor(5, 4)
    gain, bias = tensor(4), tensor(4)
    norm = applied(LayerNorm(1e-5), x, gain, bias)
    product = applied(Einsum("abc,dc->abd"), norm.outputs[0], w)
    double = applied(Add(), product.outputs[0], product.outputs[0])
    assert written(graph_of(norm, product, double)) == [
        ("reshape", (6, 4)),
        ("layer_norm", (6, 4)),
        ("einsum", (6, 5)),
        ("add", (6, 5)),
        ("reshape", (2, 3, 5)),
    ]


def test_the_output_stays_the_same_value():
    product = applied(Einsum("abc,cd->abd"), tensor(2, 3, 4), tensor(4, 5))
    graph = graph_of(product)
    found = flatten_batch_dims(graph)
    assert found.outputs["y"] is graph.outputs["y"]
    assert found.nodes[-1].outputs == (graph.outputs["y"],)


def test_the_gradient_of_a_weight_and_of_a_bias_share_a_view():
    g, x = tensor(2, 3, 5), tensor(2, 3, 4)
    bias = applied(Sum((0, 1), False), g)
    weight = applied(Einsum("abd,abc->dc"), g, x)
    graph = Graph((g, x), (bias, weight), {"b": bias.outputs[0], "w": weight.outputs[0]})
    found = flatten_batch_dims(graph)
    shapes = [(node.op.name, node.outputs[0].type.shape) for node in found.nodes]
    assert shapes == [("reshape", (6, 5)), ("sum", (5,)), ("reshape", (6, 4)), ("einsum", (5, 4))]
    assert found.nodes[-1].op.equation == "ad,ac->dc"


def test_views_of_views_are_views_of_the_first():
    product = applied(Einsum("abc,dc->abd"), tensor(2, 3, 4), tensor(6, 4))
    heads = applied(Reshape((2, 3, 2, 3)), product.outputs[0])
    assert written(graph_of(product, heads)) == [
        ("reshape", (6, 4)),
        ("einsum", (6, 6)),
        ("reshape", (2, 3, 2, 3)),
    ]


@pytest.mark.parametrize(
    "node",
    [
        applied(Einsum("abc,cd->dab"), tensor(2, 3, 4), tensor(4, 5)),
        applied(Einsum("abc,acd->abd"), tensor(2, 3, 4), tensor(2, 4, 5)),
        applied(Einsum("ab,cb->ac"), tensor(2, 3), tensor(4, 3)),
        applied(LayerNorm(1e-5), tensor(2, 3), tensor(3), tensor(3)),
        applied(Sum((0, 1), True), tensor(2, 3, 4)),
        applied(Sum((1, 2), False), tensor(2, 3, 4)),
        applied(Add(), tensor(2, 3, 4), tensor(2, 3, 4)),
    ],
    ids=lambda node: getattr(node.op, "equation", node.op.name),
)
def test_what_does_not_work_on_rows_stays(node: Node):
    assert flatten_batch_dims(graph_of(node)).nodes == (node,)


def test_operands_that_would_be_copied_are_left_as_they_lie():
    product = applied(Einsum("abc,dc->abd"), tensor(2, 3, 4), tensor(5, 4))
    for other in (
        applied(Transpose((1, 0, 2)), tensor(3, 2, 5)),
        applied(Broadcast((2, 3, 5)), tensor(1, 1, 5)),
    ):
        total = applied(Add(), product.outputs[0], other.outputs[0])
        assert written(graph_of(product, other, total))[-1] == ("add", (2, 3, 5))


def test_a_gpt_is_written_with_few_views_and_gives_the_same_numbers():
    rng = np.random.default_rng(0)
    data = {name: rng.integers(0, 7, (3, 4)).astype(np.int32) for name in ("tokens", "target")}
    found = []
    for backend in (ml.TorchBackend(device="cpu"), ml.NumpyBackend()):
        compiled = ml.compile(with_loss(gpt(7, SIZES)), backend, shapes=data)
        found.append(compiled.evaluate(compiled.randomize_params(0), data, {"loss": 1.0}))
        if backend.name == "torch":
            text = compiled.code()
    (outputs, gradients), (expected, slopes) = found
    np.testing.assert_allclose(outputs["loss"].numpy(), expected["loss"].numpy(), 1e-5)
    for name, slope in slopes.items():
        np.testing.assert_allclose(gradients[name].numpy(), slope.numpy(), 1e-4, 1e-5)
    # Heads are split and joined: 4 views forward and 4 backward in each of the 2 blocks.
    assert text.count(".reshape(") - 2 * 8 <= 7
