"""How layers and models are put together: connections, links, nesting, names."""

from __future__ import annotations

import re

import pytest
from mithril.errors import GraphError
from mithril.models import (
    Add,
    CrossEntropy,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    Model,
    MultiHeadAttention,
    PositionalEncoding,
    Relu,
)
from mithril.models.trace import input_names, output_names, parameter_names, trace

from tests.models.evaluate import floats, integers


def shape_of(model: Model, **shapes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the output shapes for these float inputs."""
    traced = trace(model, {name: floats(*shape) for name, shape in shapes.items()})
    return {name: value.type.shape for name, value in traced.graph.outputs.items()}


def ops_of(model: Model, **shapes: tuple[int, ...]) -> list[str]:
    traced = trace(model, {name: floats(*shape) for name, shape in shapes.items()})
    return [f"{node.scope}:{node.op.name}" for node in traced.graph.nodes]


# ------------------------------------------------------------------ connections by name


def test_explicit_connections_make_inputs_and_outputs() -> None:
    model = Model()
    model |= Linear(dimension=128)(input="input", output="hidden")
    model += Relu()(input="hidden", output="hidden_act")
    model += Linear(dimension=10)(input="hidden_act", output="output")
    assert input_names(model) == ("input",)
    assert output_names(model) == ("output",)
    assert parameter_names(model) == (
        "linear_0.weight", "linear_0.bias", "linear_1.weight", "linear_1.bias",
    )  # fmt: skip
    assert shape_of(model, input=(256, 784)) == {"output": (256, 10)}


def test_a_value_nobody_consumes_is_an_output() -> None:
    model = Model()
    model |= Linear(8)(input="input", output="fc1")
    model += Relu()(input="fc1", output="relu2")
    model += Linear(10)(input="fc1", output="output")
    assert output_names(model) == ("relu2", "output")
    assert shape_of(model, input=(2, 4)) == {"relu2": (2, 8), "output": (2, 10)}


def test_or_connects_nothing_by_itself_and_add_feeds_the_last_output() -> None:
    apart, joined = Model(), Model()
    apart |= Linear(8)
    apart |= Relu()
    assert input_names(apart) == ("input", "relu_0.input")
    assert output_names(apart) == ("linear_0.output", "relu_0.output")
    joined |= Linear(8)
    joined += Relu()
    assert input_names(joined) == ("input",)
    assert output_names(joined) == ("output",)


def test_add_feeds_the_first_unconnected_input_only() -> None:
    model = Model()
    model += Linear(8)(input="x")
    model += CrossEntropy()
    assert input_names(model) == ("x", "target")
    other = Model()
    other += Embedding(8, 4)(input="ids")
    other += CrossEntropy()(input="logits")
    assert input_names(other) == ("ids", "logits")


def test_add_does_not_feed_the_last_output_twice() -> None:
    model = Model()
    model += Linear(8)(input="x", output="logits")
    model += CrossEntropy()(input="logits", output="loss")
    assert input_names(model) == ("x", "target")


def test_add_leaves_a_layer_alone_whose_inputs_are_all_given() -> None:
    model = Model()
    model |= Linear(8)(input="a", output="x")
    model += Linear(8)(input="b", output="y")
    assert input_names(model) == ("a", "b")
    assert output_names(model) == ("x", "y")


def test_several_inputs_are_given_as_a_list() -> None:
    model = Model()
    model |= Linear(4)(input="x", output="a")
    model += Add()(inputs=["x", "a", "a"], output="sum")
    assert output_names(model) == ("sum",)
    assert ops_of(model, x=(2, 4)).count("add_0:add") == 2


def test_an_input_without_a_producer_is_fed_when_one_comes() -> None:
    model = Model()
    model |= Relu()(input="late", output="y")
    model |= Linear(3)(input="x", output="late")
    assert input_names(model) == ("x",)
    assert [line.split(":")[0] for line in ops_of(model, x=(2, 4))][-1] == "relu_0"


def test_an_output_named_after_a_waiting_input_feeds_it() -> None:
    block = Model()
    block |= Relu()(input="block_input", output="block_output")
    model = Model()
    model |= block
    model |= Linear(3)(input="x", output="block_input")
    assert input_names(model) == ("x",)
    assert output_names(model) == ("block_output",)


def test_the_connect_method_of_a_layer_is_a_call() -> None:
    model = Model()
    model |= Linear(8).connect(input="x", output="y")
    assert (input_names(model), output_names(model)) == (("x",), ("y",))


def test_unnamed_ports_are_reached_by_their_path() -> None:
    model = Model()
    model |= Linear(8)
    model |= Relu()(input="linear_0.output", output="a")
    model |= Relu()(input="linear_0.output", output="b")
    assert (input_names(model), output_names(model)) == (("input",), ("a", "b"))


def test_a_name_given_by_the_user_beats_the_name_of_a_port() -> None:
    model = Model()
    model += Linear(8)
    model += Relu()(output="x")
    model |= Linear(3)(input="x", output="output")
    model |= Linear(2)(input="x")
    assert output_names(model) == ("output", "linear_2.output")


# ------------------------------------------------------------------ connect


def two_branches() -> Model:
    model = Model()
    model |= Linear(4)(input="x", output="a")
    model |= Linear(4)(input="x", output="b")
    return model


def test_connect_replaces_an_automatic_link() -> None:
    model = two_branches()
    model += Relu()(output="y")
    assert output_names(model) == ("a", "y")
    model.connect(source="a", destination="relu_0.input")
    assert output_names(model) == ("b", "y")


def test_connect_is_idempotent() -> None:
    model = two_branches()
    model |= Relu()(input="c", output="y")
    model.connect(source="a", destination="c")
    once = str(model)
    model.connect(source="a", destination="c")
    assert str(model) == once
    assert output_names(model) == ("b", "y")


def test_connect_to_what_the_call_said_already_changes_nothing() -> None:
    model = two_branches()
    model += Relu()(input="a", output="y")
    before = model.snapshot()
    model.connect(source="a", destination="relu_0.input")
    assert model.snapshot() is before


def test_connect_against_an_explicit_link_is_refused() -> None:
    model = two_branches()
    model |= Relu()(input="c", output="y")
    model.connect(source="a", destination="c")
    before = model.snapshot()
    with pytest.raises(
        GraphError,
        match=r"'c' is fed by 'a' \(.*py:\d+\) and cannot also be fed by 'b'.*; remove one of the two",
    ):
        model.connect(source="b", destination="c")
    assert model.snapshot() is before


def test_connect_against_the_call_of_a_layer_is_refused() -> None:
    model = two_branches()
    model += Relu()(input="a", output="y")
    with pytest.raises(GraphError, match=r"'relu_0\.input' is fed by 'linear_0'"):
        model.connect(source="b", destination="relu_0.input")


def test_connect_feeds_an_input_of_the_model_from_another() -> None:
    model = Model()
    model |= Relu()(input="x", output="a")
    model |= Relu()(input="y", output="b")
    model.connect(source="x", destination="y")
    assert input_names(model) == ("x",)


@pytest.mark.parametrize(("source", "destination", "text"), [
    ("aa", "c", "source 'aa' is not a connection of the model; connections: "),
    ("hidde", "c", "did you mean 'hidden'?"),
    ("hidden", "cc", "destination 'cc' is not a connection of the model"),
    ("hidden", "hidden", "'hidden' is fed by 'linear_0'"),
    ("y", "c", "connections form a cycle; relu_0 <- relu_0; remove one"),
    ("c", "c", "connecting 'c' to 'c' makes a cycle ("),
])  # fmt: skip
def test_connect_refuses_what_cannot_be(source: str, destination: str, text: str) -> None:
    model = Model()
    model |= Linear(4)(input="x", output="hidden")
    model |= Relu()(input="c", output="y")
    before = model.snapshot()
    with pytest.raises(GraphError, match=re.escape(text)):
        model.connect(source=source, destination=destination)
    assert model.snapshot() is before


# ------------------------------------------------------------------ nesting


def block(index: int) -> Model:
    """The block of the model parallelism guide, smaller."""
    made, name = Model(), f"layer{index}"
    made |= MultiHeadAttention(num_heads=2, head_dim=4)(
        input=f"{name}_input", output=f"{name}_attn"
    )
    made += Add()(inputs=[f"{name}_input", f"{name}_attn"], output=f"{name}_attn_res")
    made += LayerNorm()(input=f"{name}_attn_res", output=f"{name}_norm1")
    made += FeedForward(hidden_dim=16)(input=f"{name}_norm1", output=f"{name}_ffn")
    made += Add()(inputs=[f"{name}_norm1", f"{name}_ffn"], output=f"{name}_ffn_res")
    made += LayerNorm()(input=f"{name}_ffn_res", output=f"{name}_output")
    return made


def guide_transformer(layers: int = 3) -> Model:
    model = Model()
    model |= Embedding(vocab_size=50, embedding_dim=8)(input="input", output="embedding")
    model += PositionalEncoding(max_len=16)(input="embedding", output="pos_embedding")
    for i in range(layers):
        model += block(i)
        source = "pos_embedding" if i == 0 else f"layer{i - 1}_output"
        model.connect(source=source, destination=f"layer{i}_input")
    model += Linear(dimension=50)(input=f"layer{layers - 1}_output", output="logits")
    return model


def test_the_transformer_of_the_guide() -> None:
    model = guide_transformer()
    assert (input_names(model), output_names(model)) == (("input",), ("logits",))
    assert parameter_names(model)[:4] == (
        "embedding_0.weight", "model_0.multi_head_attention_0.q.weight",
        "model_0.multi_head_attention_0.q.bias", "model_0.multi_head_attention_0.k.weight",
    )  # fmt: skip
    traced = trace(model, {"input": integers(2, 16)})
    assert traced.graph.outputs["logits"].type.shape == (2, 16, 50)
    assert traced.value_names["model_1.layer1_input"] is traced.value_names["model_0.layer0_output"]


def test_a_nested_model_shows_only_its_inputs_and_outputs() -> None:
    model = Model()
    model |= block(0)
    assert (input_names(model), output_names(model)) == (("layer0_input",), ("layer0_output",))
    with pytest.raises(GraphError, match="'layer0_attn' is not a connection of the model"):
        model.connect(source="layer0_attn", destination="layer0_input")


def test_a_model_is_called_like_a_layer() -> None:
    inner = Model()
    inner |= Linear(4)(input="input", output="output")
    model = Model()
    model |= inner(input="x", output="h")
    model |= inner(input="h", output="y")
    assert (input_names(model), output_names(model)) == (("x",), ("y",))


def test_stacked_models_with_the_same_names() -> None:
    model = Model()
    for _ in range(3):
        stage = Model()
        stage |= Linear(4)(input="input", output="output")
        model += stage
    assert (input_names(model), output_names(model)) == (("input",), ("output",))
    assert parameter_names(model)[2] == "model_1.linear_0.weight"
    assert shape_of(model, input=(2, 3)) == {"output": (2, 4)}


def test_models_nest_deeply() -> None:
    model = Model()
    model += Linear(4)
    for _ in range(4):
        outer = Model()
        outer += model
        model = outer
    assert parameter_names(model)[0] == "model_0.model_0.model_0.model_0.linear_0.weight"
    assert shape_of(model, input=(2, 3)) == {"output": (2, 4)}


def test_unconnected_inputs_of_a_nested_model_stay_open() -> None:
    inner = Model()
    inner |= Linear(4)
    inner |= Linear(4)
    model = Model()
    model |= inner
    assert input_names(model) == ("input", "linear_1.input")
    model |= Relu()(input="x", output="h")
    model.connect(source="h", destination="linear_1.input")
    assert input_names(model) == ("input", "x")


def test_nesting_takes_the_model_as_it_is_then() -> None:
    inner, model = Model(), Model()
    inner += Linear(4)
    model += inner
    inner += Linear(5)
    assert len(parameter_names(model)) == 2
    assert len(parameter_names(inner)) == 4


def test_a_hundred_layers_in_a_row() -> None:
    model = Model()
    for _ in range(1200):  # deeper than Python's recursion limit
        model += Relu()
    assert len(ops_of(model, input=(2,))) == 1200
