"""Layers that call layers before shapes are known: what a body may ask, and what cannot be."""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.errors import GraphError, OptionError
from mithril.ir import Tensor

from tests.models.evaluate import random

X = random(4, 6, 8)


def in_model(layer: ml.Layer) -> ml.Model:
    model = ml.Model()
    model |= layer(x="x", output="y")
    return model


@ml.layer
def Late(x: Tensor) -> Tensor:  # noqa: N802
    x = ml.Linear(8)(x)
    return ml.Linear(4)(x) if x.ndim == 3 else x


def test_names_that_depend_on_shapes_are_asked_for() -> None:
    assert Late().parameters == ("linear_0.weight", "linear_0.bias")
    names = r"\('linear_0.weight', 'linear_0.bias', 'linear_1.weight', 'linear_1.bias'\)"
    with pytest.raises(
        GraphError,
        match=rf"layer 'late_0' calls layers whose parameters are not known without shapes "
        rf"\(sizes decide whether it calls them\); list them all, @ml.layer\(parameters={names}\), for Late",
    ):
        ml.compile(in_model(Late()), ml.NumpyBackend(), shapes={"x": X.shape})
    listed = ml.layer(
        parameters=("linear_0.weight", "linear_0.bias", "linear_1.weight", "linear_1.bias")
    )(Late.definition.function)
    compiled = ml.compile(in_model(listed()), ml.NumpyBackend(), shapes={"x": X.shape})
    assert compiled.parameters[2:] == ("late_0.linear_1.weight", "late_0.linear_1.bias")


@pytest.mark.parametrize(
    "body",
    [
        lambda x: ml.Linear(8)(x) if x.dtype.is_float else x,
        lambda x: ml.Linear(8)(x) if x.shape[0] > 1 else x,
        lambda x: ml.Linear(8)(x) if len(x.shape) > 1 else x,
        lambda x: next(ml.Linear(8)(x) for _ in x.shape),
        lambda x: ml.Linear(8)(x) if x.shape == X.shape else x,
        lambda x: ml.Linear(8)(x) if 1 / np.sqrt(float(x.shape[-1])) else x,
    ],
)
def test_a_body_that_needs_shapes_says_so(body) -> None:
    layer = ml.layer(_named(body))()
    assert layer.parameters == ()
    with pytest.raises(GraphError, match=r"list them all, @ml\.layer"):
        ml.compile(layer, ml.NumpyBackend(), shapes={"x": X.shape})


def _named(body):
    def Needs(x: Tensor) -> Tensor:  # noqa: N802
        return body(x)

    return Needs


@pytest.mark.parametrize(
    "body",
    [
        lambda x: ml.Linear(x.shape[-1] // 2 * 2)(x.T.transpose(0, 2, 1)),
        lambda x: ml.Linear(8)(mnp.zeros(x.shape) + mnp.ones((x.shape[0], 1, 8)) + x),
        lambda x: ml.Linear(8)(x.reshape(x.shape[0] * x.shape[1], -1)).reshape(x.shape),
        lambda x: ml.Linear(8)(x.reshape(x.shape[:2] + x.shape[2:])),
        lambda x: ml.Linear(8)(sum(x.split(2, -1)).reshape(*x.shape[:-1], 4)),
    ],
)
def test_sizes_are_computed_with_without_shapes(body) -> None:
    layer = ml.layer(_named(body))()
    if layer.parameters:
        assert layer.parameters == ("linear_0.weight", "linear_0.bias")
        compiled = ml.compile(layer, ml.NumpyBackend(), shapes={"x": X.shape})
        assert compiled.evaluate(compiled.randomize_params(), {"x": X})["output"].ndim == 3
    else:
        assert layer.parts.stopped


def test_star_takes_as_many_as_there_are() -> None:
    @ml.layer
    def Flat(x: Tensor) -> Tensor:  # noqa: N802
        *lead, features = x.shape
        first, *_, last = x.shape
        return ml.Linear(features)(x.reshape(-1, last)).reshape(*lead, first * 0 + features)

    assert Flat().parameters == ("linear_0.weight", "linear_0.bias")
    compiled = ml.compile(Flat(), ml.NumpyBackend(), shapes={"x": X.shape})
    assert compiled.evaluate(compiled.randomize_params(), {"x": X})["output"].shape == X.shape


MISTAKES = {
    "two of one name": (
        lambda x: ml.Linear(8, name="a")(ml.Linear(8, name="a")(x)),
        r"calls two layers named 'a' .* name=f'a_\{i\}' in a loop",
    ),
    "too many inputs": (lambda x: ml.Relu()(x, x), r"is called on 2 tensors .* has 1 inputs: 'in"),
    "no input": (
        lambda x: ml.MultiHeadAttention(num_heads=2)(mask=x),
        r"is called without 'input'.*; it takes 'input', ",
    ),
    "an unknown input": (lambda x: ml.Relu()(imput=x), r"no input or output 'imput'"),
    "an input twice": (lambda x: ml.Relu()(x, input=x), r"Relu\(\) gets input 'input' twice"),
    "no tensors": (
        lambda x: ml.Add()(inputs=[x, "h"]),
        r"input 'inputs_1' of Add\(\) is a str.*; call it on tensors, and on arrays",
    ),
    "on a device": (
        ml.Linear(8, device_id=1),
        r"is called in layer 'needs' with device_id=1; give device_id to the layer",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_calls(name: str) -> None:
    body, text = MISTAKES[name]
    with pytest.raises(GraphError, match=text):
        ml.compile(ml.layer(_named(body))(), ml.NumpyBackend(), shapes={"x": X.shape})


def test_a_model_with_places_is_no_part() -> None:
    placed = ml.Model(name="far")
    placed |= ml.Linear(8, device_id=1)(input="x", output="y")
    with pytest.raises(GraphError, match=r"model 'far' is called in layer 'needs' and places its"):
        ml.compile(ml.layer(_named(placed))(), ml.NumpyBackend(), shapes={"x": X.shape})


def test_a_part_belongs_to_one_layer() -> None:
    linear = ml.Linear(8)
    once = ml.layer(_named(linear))
    model = ml.Model()
    model |= once()(x="x", output="h")
    model |= once()(x="h", output="y")
    with pytest.raises(
        GraphError,
        match=r"Linear\(dimension=8\) is used as 'needs_0.linear_0' and as 'needs_1.linear_0', and "
        r"its parameters belong to one layer",
    ):
        ml.compile(model, ml.NumpyBackend(), shapes={"x": X.shape})


def test_connections_need_names_outside_of_a_body() -> None:
    with pytest.raises(GraphError, match="it takes connections by name"):
        ml.Relu()(ml.NumpyBackend().array(X))
    with pytest.raises(OptionError, match="must be a positive integer"):
        ml.Linear(-1)
