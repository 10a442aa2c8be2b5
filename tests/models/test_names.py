"""Names of layers, parameters and connections: counters, sharing, collisions, printing."""

from __future__ import annotations

import numpy as np
import pytest
from mithril.errors import GraphError, OptionError
from mithril.models import Add, Linear, Model, Relu
from mithril.models.trace import parameter_names, trace

from tests.models.evaluate import floats


def two_branches() -> Model:
    model = Model()
    model |= Linear(4)(input="x", output="a")
    model |= Linear(4)(input="x", output="b")
    return model


# ------------------------------------------------------------------ names


def test_counters_are_per_class_and_scope() -> None:
    model = Model()
    model += Linear(4)
    model += Relu()
    model += Linear(4, name="fc")
    model += Linear(4)
    assert [member.name for member in model.snapshot().members] == [
        "linear_0", "relu_0", "fc", "linear_1",
    ]  # fmt: skip


def test_a_counter_steps_over_a_name_that_is_taken() -> None:
    model = Model()
    model += Linear(4, name="linear_0")
    model += Linear(4)
    assert parameter_names(model)[2] == "linear_1.weight"


def test_a_model_is_named_too() -> None:
    inner, model = Model(name="block3"), Model()
    inner += Linear(4, name="q")
    model += inner
    assert parameter_names(model) == ("block3.q.weight", "block3.q.bias")


def test_a_layer_used_twice_shares_its_parameters() -> None:
    shared = Linear(4)
    model = Model()
    model |= shared(input="x", output="h")
    model |= shared(input="h", output="y")
    assert parameter_names(model) == ("linear_0.weight", "linear_0.bias")
    traced = trace(model, {"x": floats(2, 4)})
    assert [value.name for value in traced.graph.inputs] == [
        "x",
        "linear_0.weight",
        "linear_0.bias",
    ]
    assert {node.scope for node in traced.graph.nodes} == {"linear_0", "linear_1"}


def test_a_named_layer_used_twice_gets_a_second_place() -> None:
    shared = Linear(4, name="tied")
    model = Model()
    model += shared
    model += shared
    assert [member.name for member in model.snapshot().members] == ["tied", "tied_1"]
    assert parameter_names(model) == ("tied.weight", "tied.bias")


def test_parameters_come_in_order_of_members_whatever_runs_first() -> None:
    model = Model()
    model |= Linear(3, name="last")(input="h", output="y")
    model |= Linear(4, name="first")(input="x", output="h")
    traced = trace(model, {"x": floats(2, 5)})
    names = [value.name for value in traced.graph.inputs]
    assert names == ["x", "last.weight", "last.bias", "first.weight", "first.bias"]
    assert traced.parameter_names == parameter_names(model)


# ------------------------------------------------------------------ what is refused


def started() -> Model:
    model = Model()
    model |= Linear(4, name="fc")(input="x", output="h")
    return model


@pytest.mark.parametrize(
    ("add", "text"),
    [
        (
            lambda: Linear(3, name="fc"),
            r"name 'fc' is taken; it is given to Linear 'fc' \(.*:\d+\) and to Linear 'fc' \(.*:\d",
        ),
        (
            lambda: Relu()(input="x", output="h"),
            r"'h' is already the output of 'fc' \(.*:\d+\) and cannot also be",
        ),
        (lambda: Relu()(input="y", output="y"), "connections form a cycle; relu_0 <- relu_0"),
        (lambda: Relu()(input="h", output="x"), "connections form a cycle; (fc|relu_0) <- "),
        (lambda: Relu()(inputs="h"), "has no input or output 'inputs'; .*did you mean 'input'?"),
        (
            lambda: Relu()("h"),
            r"Relu\(\) is called with a str; it takes connections by name, such as \(input=\"x\", "
            r"output=\"y\"\)$",
        ),
        (
            lambda: Add()(np.ones(2)),
            r"Add\(\) is called with a numpy.ndarray; it takes connections by name, such as "
            r"\(inputs=\[\"a\", \"b\"\], output=\"y\"\); arrays go to evaluate\(\) of the compiled",
        ),
        (lambda: Relu()(input=3), "is of type int; give the name of a connection"),
        (lambda: Relu()(input=""), "is empty; give a name"),
        (lambda: Relu()(output="a.b"), "'a.b' holds a dot.* write 'a_b'"),
        (lambda: Relu()(input="fc.outputt"), "'fc.outputt' is not a connection of the model"),
        (Add, r"takes any number of inputs, and none is named.*inputs=\[\"a\", \"b\"\]"),
        (lambda: Add()(inputs="h"), r"takes a list of connection names, not 'h'"),
        (lambda: Relu, r"Relu is a layer class.*Relu\(\)\(input=…, output=…\)"),
        (lambda: 3, "takes layers and models, not an int"),
        (Model, "model has no layers"),
    ],
)
def test_a_failed_addition_leaves_the_model_as_it_was(add, text: str) -> None:
    model = started()
    before = model.snapshot()
    with pytest.raises(GraphError, match=text):
        model += add()
    with pytest.raises(GraphError, match=text):
        model |= add()
    assert model.snapshot() is before


def test_a_model_does_not_contain_itself() -> None:
    model = started()
    with pytest.raises(GraphError, match="cannot contain itself"):
        model += model


def test_an_output_cannot_take_the_name_of_a_fed_input() -> None:
    model = two_branches()
    model |= Relu()(input="c", output="y")
    model.connect(source="a", destination="c")
    with pytest.raises(GraphError, match="'c' is already fed by 'a'"):
        model |= Relu()(input="b", output="c")


def test_an_ambiguous_name_lists_what_it_may_mean() -> None:
    model = Model()
    for _ in range(2):
        model |= Linear(4)
    with pytest.raises(
        GraphError,
        match=r"may mean 'linear_0\.output', 'linear_1\.output'; write the full name, or",
    ):
        model |= Relu()(input="output", output="y")


def test_printing_shows_layers_connections_parameters_and_sharing() -> None:
    shared = Linear(4, name="fc", weight_shard_spec=(0,), device_mesh=(2,))
    model, inner = Model(), Model(name="inner")
    inner += shared
    model += inner
    model += Relu()
    model += shared
    assert str(model).splitlines() == [
        "model: 3 layers, inputs input, outputs output",
        "name      layer                           connections                    parameters",
        "inner     Model                           input -> inner.output",
        "inner.fc  Linear(dimension=4, name='fc')  input -> output                weight (0,) on (2,), bias",
        "relu_0    Relu()                          inner.output -> relu_0.output",
        "fc        Linear(dimension=4, name='fc')  relu_0.output -> output        shared with inner.fc",
    ]


def test_a_stage_needs_a_pattern_and_a_number() -> None:
    with pytest.raises(
        OptionError,
        match=r"model.stage got {'a': 0} alone \(test_names.py:\d+\); give a name pattern",
    ):
        Model().stage({"a": 0})


def test_a_name_that_cannot_be_printed() -> None:
    with pytest.raises(GraphError) as caught:
        Linear(4, name="a\n\udc80b")
    assert str(caught.value) == (
        r"name of Linear 'a\n\udc80b' holds a character that cannot be printed; leave it out, as in "
        "'ab'"
    )
