"""Loops, checkpoints and gradients in the body of a layer call layers: names, results, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.ir import Tensor

from tests.models.evaluate import random
from tests.tolerances import TOLERANCE

STEPS, BATCH, FEATURES = 3, 4, 6
X = random(STEPS, BATCH, FEATURES)
Layer = Callable[[Tensor], Any]


def step_with(cell: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def step(carry: Any, row: Any) -> Any:
        carry = mnp.tanh(cell(carry) + row)
        return carry, carry

    return step


def shared(input: Tensor) -> Any:
    cell = ml.Linear(FEATURES, name="cell")
    return ml.scan(step_with(cell), mnp.zeros(input.shape[1:]), input)[1]


def made_inside(input: Tensor) -> Any:
    step = step_with(lambda x: ml.Linear(FEATURES, name="cell")(x))  # noqa: PLW0108
    return ml.scan(step, mnp.zeros(input.shape[1:]), input)[1]


def carries_numbers(input: Tensor) -> Any:
    def step(carry: Any, row: Any) -> Any:
        count, total, state = carry["count"], carry["total"], carry["state"]
        state = mnp.tanh(ml.Linear(FEATURES, name="cell")(state) + row)
        return {"count": count + 1, "total": total + state.sum(), "state": state}, {"rows": state}

    start = {"count": 0, "total": 0, "state": mnp.zeros(input.shape[1:])}  # of no dtype yet
    last, made = ml.scan(step, start, input)
    return made["rows"] + 0.0 * last["total"] + 0.0 * last["count"].astype("float32")


def in_a_checkpoint(input: Tensor) -> Any:
    cell = ml.Linear(FEATURES, name="cell")
    return ml.scan(ml.checkpoint(step_with(cell)), mnp.zeros(input.shape[1:]), input)[1]


def in_a_jitted_function(input: Tensor) -> Any:
    cell = ml.Linear(FEATURES, name="cell")
    run = ml.jit(lambda x: ml.scan(step_with(cell), mnp.zeros(x.shape[1:]), x))
    return run(input)[1]


def recur(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    state, found = np.zeros((BATCH, FEATURES)), []
    for row in X:
        state = np.tanh(state @ weight.T + bias + row)
        found.append(state)
    return np.stack(found)


@pytest.mark.parametrize("mesh", [{}, {"data": 2}, {"tensor": 2}], ids=str)
@pytest.mark.parametrize(
    "body", [shared, made_inside, carries_numbers, in_a_checkpoint, in_a_jitted_function]
)
def test_a_recurrent_layer_of_ones_own(body: Layer, mesh: dict[str, int]) -> None:
    model = ml.Model()
    model |= ml.layer(body)(name="rnn")(input="x", output="y")
    assert model.parameters == ("rnn.cell.weight", "rnn.cell.bias")
    if "tensor" in mesh:
        model.shard({"rnn.cell.weight": ml.P("tensor")})
    compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(**mesh)))
    params = compiled.randomize_params(seed=2)
    outputs, gradients = compiled.evaluate(params, {"x": X}, output_gradients={"y": X})
    weight, bias = (params[name].numpy().astype(np.float64) for name in params)
    np.testing.assert_allclose(outputs["y"].numpy(), recur(weight, bias), *TOLERANCE["float32"])
    step = 1e-4
    for place in ((0, 0), (2, 5)):
        moved = np.zeros_like(weight)
        moved[place] = step
        slope = ((recur(weight + moved, bias) - recur(weight - moved, bias)) * X).sum() / (2 * step)
        found = gradients["rnn.cell.weight"].numpy()[place]
        np.testing.assert_allclose(found, slope, rtol=1e-3, atol=1e-3)


def energy(input: Tensor) -> Any:
    cell = ml.Linear(FEATURES, bias=False, name="cell")
    return ml.grad(lambda x: 0.5 * (cell(x) ** 2).sum())(input)


def energy_with_value(input: Tensor) -> Any:
    def half_square(x: Any, scale: float) -> Any:
        made = ml.Linear(FEATURES, bias=False, name="cell")(x)
        return scale * (made**2).sum(), made

    (value, made), slope = ml.value_and_grad(half_square, has_aux=True)(input, 0.5)
    return slope + 0.0 * value + 0.0 * made


@pytest.mark.parametrize("body", [energy, energy_with_value])
def test_a_layer_that_is_a_gradient(body: Layer) -> None:
    model = ml.Model()
    model |= ml.layer(body)(name="force")(input="x", output="y")
    assert model.parameters == ("force.cell.weight",)
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": X.shape})
    params = compiled.randomize_params(seed=2)
    weight = params["force.cell.weight"].numpy()
    found = compiled.evaluate(params, {"x": X})["y"].numpy()
    np.testing.assert_allclose(found, X @ weight.T @ weight, *TOLERANCE["float32"])
