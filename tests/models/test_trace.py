"""Tracing: the graph of whole models, names, inputs, user layers, and what is refused."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from mithril import models as ml
from mithril.errors import GraphError, ShapeError
from mithril.ir import Tensor
from mithril.ir.verify import verify
from mithril.models.definition import POSITIVE
from mithril.models.trace import input_names, output_names, parameter_names, trace

from tests.models.evaluate import floats, integers, random, run
from tests.tolerances import TOLERANCE

CLOSE = dict(zip(("rtol", "atol"), TOLERANCE["float32"], strict=True))


def cnn() -> ml.Model:
    model = ml.Model()
    model |= ml.Conv2d(filters=32, kernel_size=3)(input="input", output="conv1")
    model += ml.Relu()(input="conv1", output="relu1")
    model += ml.MaxPool2d(kernel_size=2)(input="relu1", output="pool1")
    model += ml.Flatten()(input="pool1", output="flat")
    model += ml.Linear(dimension=128)(input="flat", output="fc1")
    model += ml.Relu()(input="fc1", output="relu2")
    model += ml.Linear(dimension=10)(input="fc1", output="output")
    return model


def gpt(layers: int = 2) -> ml.Model:
    model = ml.Model()
    model |= ml.Embedding(64, 16, name="tokens")(input="ids", output="embedded")
    model += ml.PositionalEncoding(32, learned=True, name="positions")
    for index in range(layers):
        block = ml.Model(name=f"block{index}")
        block |= ml.LayerNorm(name="norm1")(input="x", output="normed")
        block += ml.MultiHeadAttention(4, causal=True, name="attn")
        block += ml.Add()(inputs=["x", "attn.output"], output="middle")
        block += ml.LayerNorm(name="norm2")(input="middle")
        block += ml.FeedForward(64, name="mlp")
        block += ml.Dropout(0.1)
        block += ml.Add()(inputs=["middle", "dropout_0.output"], output="y")
        model += block
    model += ml.LayerNorm(name="norm")
    model += ml.Linear(64, bias=False, name="head")(output="logits")
    model += ml.CrossEntropy()(input="logits", output="loss")
    return model


# ------------------------------------------------------------------ whole models


def test_the_cnn_of_the_guide() -> None:
    traced = trace(cnn(), {"input": floats(256, 3, 32, 32)})
    verify(traced.graph)
    shapes = {value.name: value.type.shape for value in traced.graph.inputs}
    assert shapes == {
        "input": (256, 3, 32, 32),
        "conv2d_0.weight": (32, 3, 3, 3), "conv2d_0.bias": (32,),
        "linear_0.weight": (128, 32 * 15 * 15), "linear_0.bias": (128,),
        "linear_1.weight": (10, 128), "linear_1.bias": (10,),
    }  # fmt: skip
    outputs = {name: value.type.shape for name, value in traced.graph.outputs.items()}
    assert outputs == {"relu2": (256, 128), "output": (256, 10)}


def test_a_gpt() -> None:
    model = gpt()
    assert (input_names(model), output_names(model)) == (("ids", "target"), ("loss",))
    traced = trace(model, {"ids": integers(2, 8), "target": integers(2, 8)})
    verify(traced.graph)
    assert traced.graph.outputs["loss"].type == floats()
    assert traced.uses_seed
    names = [value.name for value in traced.graph.inputs]
    assert names == ["ids", "target", *parameter_names(model), "seed"]
    assert parameter_names(model)[:4] == (
        "tokens.weight", "positions.weight", "block0.norm1.weight", "block0.norm1.bias",
    )  # fmt: skip
    assert len(names) == 2 + 2 + 2 * 16 + 3 + 1
    assert {"block1.attn.q", "block1.dropout_0", "head"} <= {n.scope for n in traced.graph.nodes}


def test_a_gpt_computes() -> None:
    ids = np.arange(16, dtype=np.int32).reshape(2, 8)
    out, _ = run(gpt(), ids=ids, target=ids)
    assert out["loss"].shape == ()
    assert np.isfinite(out["loss"])


def test_inference_drops_the_dropout_and_its_seed() -> None:
    traced = trace(gpt(), {"ids": integers(2, 8), "target": integers(2, 8)}, inference=True)
    assert "seed" not in [value.name for value in traced.graph.inputs]


def test_the_same_model_traces_to_the_same_text() -> None:
    types = {"ids": integers(2, 8), "target": integers(2, 8)}
    first, second = trace(gpt(), types), trace(gpt(), types)
    assert [str(n.op) for n in first.graph.nodes] == [str(n.op) for n in second.graph.nodes]
    assert list(first.value_names) == list(second.value_names)


def test_a_lone_layer() -> None:
    traced = trace(ml.Linear(128), {"input": floats(32, 256)})
    assert traced.parameter_names == parameter_names(ml.Linear(128)) == ("weight", "bias")
    assert [value.name for value in traced.graph.inputs] == ["input", "weight", "bias"]
    assert traced.graph.outputs["output"].type == floats(32, 128)
    assert traced.value_names["output"] is traced.graph.outputs["output"]


def test_a_tied_table_and_head_computes_with_one_parameter() -> None:
    shared = ml.Linear(4, bias=False)
    model = ml.Model()
    model |= shared(input="x", output="h")
    model |= shared(input="h", output="y")
    x = random(2, 4)
    out, p = run(model, x=x)
    weight = p["linear_0.weight"]
    np.testing.assert_allclose(out["y"], x @ weight.T @ weight.T, **CLOSE)


# ------------------------------------------------------------------ names and places


def test_values_have_the_users_names() -> None:
    model = gpt()
    traced = trace(model, {"ids": integers(2, 8), "target": integers(2, 8)})
    names = traced.value_names
    assert names["embedded"].name == "embedded"
    assert names["block0.middle"].name == "block0.middle"
    assert names["block0.attn"] is names["block0.attn.output"]
    assert names["block0.attn"].name == "block0.attn"
    assert names["positions"] is names["block0.x"]
    assert names["block0"] is names["block0.y"] is names["block1.x"]
    assert names["cross_entropy_0"] is names["loss"] is traced.graph.outputs["loss"]


def test_nodes_know_the_line_of_their_layer() -> None:
    line = inspect.currentframe().f_lineno + 1
    layer = ml.Linear(3)
    model = ml.Model()
    model |= layer(input="x", output="y")
    for node in trace(model, {"x": floats(2)}).graph.nodes:
        assert (node.source.file, node.source.line) == (__file__, line)


# ------------------------------------------------------------------ inputs


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {},
            r"model needs input 'input'; 'linear_0' \(test_trace.py:\d+\) reads it and no",
        ),
        (
            {"inputt": floats(2)},
            "model has no input 'inputt'; inputs: 'input'; did you mean 'input'?",
        ),
        ({"input": floats(2), "hidden": floats(2)}, "model has no input 'hidden'; inputs: 'input'"),
    ],
)
def test_inputs_must_be_those_of_the_model(given, text: str) -> None:
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="output")
    with pytest.raises(GraphError, match=text):
        trace(model, given)


def test_a_misspelt_connection_is_found_when_its_input_is_missing() -> None:
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="hidden")
    model |= ml.Relu()(input="hiden", output="output")
    with pytest.raises(GraphError, match=r"needs input 'hiden'; 'relu_0' .*did you mean 'hidden'?"):
        trace(model, {"input": floats(2)})


def test_an_input_cannot_have_the_name_of_the_hidden_seed() -> None:
    model = ml.Model()
    model |= ml.Dropout(0.5)(input="seed", output="y")
    with pytest.raises(GraphError, match=r"input 'seed' .* 'dropout_0' draws random numbers"):
        trace(model, {"seed": floats(2)})
    assert trace(model, {"seed": floats(2)}, inference=True).input_names == ("seed",)


@pytest.mark.parametrize(("model", "text"), [
    (ml.Model(), "model has no layers; add one"),
    (ml.Add(), r"Add\(\) takes any number of inputs and cannot stand alone"),
    (3, "int is not a model"),
    (ml.Linear, "type is not a model"),
])  # fmt: skip
def test_what_cannot_be_traced(model, text: str) -> None:
    for ask in (input_names, output_names, parameter_names, lambda m: trace(m, {})):
        with pytest.raises(GraphError, match=text):
            ask(model)


# ------------------------------------------------------------------ layers of users


@ml.layer(parameters=("scale",), checks={"times": POSITIVE})
def Scale(input: Tensor, *, start: float = 1.0, times: int = 1) -> Tensor:  # noqa: N802
    """Multiply every feature by a learned number."""
    return input * ml.parameter("scale", input.shape[-1:], ml.Constant(start)) * times


@ml.layer(outputs=("low", "high"))
def Halves(input: Tensor) -> dict[str, Tensor]:  # noqa: N802
    """Split the features in two."""
    half = input.shape[-1] // 2
    return {"high": input[..., half:], "low": input[..., :half]}


def test_a_user_layer_looks_like_the_others() -> None:
    assert issubclass(Scale, ml.Layer)
    assert (Scale.__name__, Scale.__doc__) == (
        "Scale",
        "Multiply every feature by a learned number.",
    )
    assert list(inspect.signature(Scale).parameters)[:3] == ["start", "times", "name"]
    assert repr(Scale(start=2.0, name="s")) == "Scale(start=2.0, name='s')"
    x = random(2, 3)
    out, p = run(Scale(times=3), input=x)
    np.testing.assert_allclose(out["output"], 3 * x * p["scale"], **CLOSE)


def test_a_layer_with_several_outputs() -> None:
    model = ml.Model()
    model |= Halves()(input="x", low="a", high="b")
    assert output_names(model) == ("a", "b")
    x = random(2, 6)
    out, _ = run(model, x=x)
    np.testing.assert_array_equal(out["a"], x[:, :3])
    np.testing.assert_array_equal(out["b"], x[:, 3:])
    assert trace(Halves(), {"input": floats(2, 6)}).graph.outputs["high"].type == floats(2, 3)


def made(parameters=(), outputs=("output",), body=lambda input: input):
    @ml.layer(parameters=parameters, outputs=outputs)
    def Custom(input: Tensor) -> Tensor:  # noqa: N802
        """Do what the test says."""
        return body(input)

    return Custom()


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (made(parameters=("a",)), "layer 'custom' declares parameter 'a' and never uses it"),
        (
            made(("gain",), body=lambda x: ml.parameter("gian", (3,), ml.Constant(1.0))),
            "layer 'custom' uses parameter 'gian' without declaring it; declared: 'gain'; did you",
        ),
        (
            made(body=lambda x: None),
            "layer 'custom' returns NoneType and declares 'output'; return a tensor",
        ),
        (made(body=lambda x: {"out": x}), "returns outputs 'out' and declares 'output'"),
        (
            made(outputs=("a", "b"), body=lambda x: x),
            "returns Tensor and declares 'a', 'b'; return a dict",
        ),
    ],
)
def test_a_user_layer_must_do_what_it_declares(layer, text: str) -> None:
    with pytest.raises(GraphError) as caught:
        trace(layer, {"input": floats(2, 3)})
    assert text in str(caught.value)


@pytest.mark.parametrize(("function", "options", "text"), [
    (lambda *, a: a, {}, "has no input"),
    (lambda x, **options: x, {}, r"takes \*\*options; list its options by name"),
    (lambda output: output, {}, "has an input and an output 'output'"),
    (lambda x, *, size: x, {"checks": {"sise": POSITIVE}}, "checks 'sise'.*did you mean 'size'?"),
])  # fmt: skip
def test_a_function_that_cannot_be_a_layer(function, options, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        ml.layer(**options)(function)


def test_a_parameter_cannot_have_the_name_of_an_input() -> None:
    with pytest.raises(GraphError, match="layer Custom has two things called 'input'"):
        made(parameters=("input",))


@pytest.mark.parametrize("call", [
    lambda: ml.parameter("weight", (3,), ml.Constant(1.0)), ml.seed, ml.is_inference, ml.layer_path,
])  # fmt: skip
def test_layer_functions_work_only_in_a_layer(call) -> None:
    with pytest.raises(GraphError, match=r"\(\) is called outside a layer"):
        call()


def test_a_shared_parameter_must_fit_both_places() -> None:
    shared = ml.Linear(4)
    model = ml.Model()
    model |= shared(input="x", output="h")
    model |= shared(input="h", output="y")
    with pytest.raises(
        ShapeError,
        match=r"'linear_1' needs parameter 'weight' as float32\[4, 4\], and "
        r"shares it as float32\[4, 3\] with 'linear_0.weight'",
    ):
        trace(model, {"x": floats(2, 3)})


def test_a_failed_trace_leaves_the_model_as_it_was() -> None:
    model = cnn()
    before = model.snapshot()
    with pytest.raises(ShapeError):
        trace(model, {"input": floats(4, 3)})
    assert model.snapshot() is before
    assert trace(model, {"input": floats(4, 3, 8, 8)}).graph.outputs["output"].type == floats(4, 10)
