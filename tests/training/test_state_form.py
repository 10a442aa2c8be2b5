"""States are recognised by their form: named once, and right in whatever form they come."""

from __future__ import annotations

from collections import UserDict
from types import MappingProxyType
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.runtime.parameters import Parameters
from mithril.runtime.training import step as step_module

from tests.training.test_step import OUT, WIDTH, Momentum, agree, batches, model, shapes


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[ml.TrainState]:
    """States whose arrays were looked up by name."""
    found: list[ml.TrainState] = []
    learn = step_module.learn_form

    def tell(state: ml.TrainState, *rest: Any, **options: Any) -> Any:
        found.append(state)
        return learn(state, *rest, **options)

    monkeypatch.setattr(step_module, "learn_form", tell)
    return found


def make(zero: int = 0) -> ml.TrainStep:
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    return ml.train_step(model(), backend, Momentum(), shapes=shapes(P("data")), zero=zero)


def train(step: ml.TrainStep, change: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses of a few steps, and the parameters after them; states change in between."""
    state, losses = step.init(seed=0), []
    for number, batch in enumerate(batches()):
        state, metrics = step(change(state, number), batch)
        losses.append(metrics["loss"].item())
    return losses, {name: x.numpy() for name, x in state.params.items()}


@pytest.mark.parametrize("zero", [0, 3])
def test_what_a_step_returned_is_not_named_again(learned: list[Any], zero: int) -> None:
    agree(train(make(zero), lambda state, number: state))
    assert len(learned) == 1


def test_parameters_may_change_their_order(learned: list[Any]) -> None:
    def turn(state: ml.TrainState, number: int) -> ml.TrainState:
        turned = Parameters(reversed(state.params.items()))
        return state._replace(params=turned) if number % 2 else state

    agree(train(make(), turn))
    assert len(learned) == 3


def test_arrays_that_lie_otherwise_are_brought_back(learned: list[Any]) -> None:
    def move(state: ml.TrainState, number: int) -> ml.TrainState:
        if number != 2:
            return state
        placed = {n: x.backend.reshard(x, P()) for n, x in state.params.items()}
        return state._replace(params=Parameters(placed))

    agree(train(make(zero=3), move))
    assert len(learned) == 2


def test_each_plan_knows_its_states(learned: list[Any]) -> None:
    step = make()
    state = step.init(seed=0)
    for size in (16, 8, 16, 8, 16):
        part = {name: x[:size] for name, x in batches(1)[0].items()}
        state, _ = step(state, part)
    assert len(learned) == 2


@pytest.mark.parametrize("kind", [MappingProxyType, UserDict])
def test_parameters_may_be_any_mapping(kind: Any) -> None:
    def wrap(state: ml.TrainState, number: int) -> ml.TrainState:
        return state._replace(params=kind(dict(state.params))) if number % 2 else state

    agree(train(make(), wrap))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "None"),
        ([], "a list"),
        ({"a": 1}, "a dict"),
        (3.0, "a float"),
        (np.zeros(6, np.float32), "an? .*ndarray"),
    ],
)
def test_what_is_no_array_is_refused(given: Any, text: str) -> None:
    step = make()
    state, batch = step.init(seed=0), batches(1)[0]
    wrong = Parameters({**state.params, "down.bias": given})
    with pytest.raises(ml.BackendError, match=rf"'down\.bias' of the state is {text}"):
        step(state._replace(params=wrong), batch)
    step(state, batch)


def test_a_seed_is_looked_at_where_it_is_used() -> None:
    batch = batches(1)[0]
    for rate in (0.0, 0.5):
        backend = ml.NumpyBackend()
        step = ml.train_step(model(dropout=rate), backend, Momentum(), shapes=shapes())
        state = step.init(seed=0)._replace(seed=3)
        if rate:
            with pytest.raises(ml.BackendError, match="'seed' of the state is an int"):
                step(state, batch)
        else:
            for _ in range(2):
                state, _ = step(state, batch)


def test_captured_arrays_that_were_moved_in_between_are_brought_back() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    held = backend.as_unplaced(np.arange(WIDTH, dtype=np.float32), "held")

    @ml.layer
    def Add(input: Any) -> Any:  # noqa: N802
        return input + held

    made = ml.Model()
    made |= Add(name="add")(input="x", output="h")
    made += ml.Linear(OUT, name="down")(output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    double = ml.jit(lambda x: x * 2, backend=backend, in_shardings=P("data"))

    def losses(*, moves: bool) -> list[float]:
        step = ml.train_step(made, backend, Momentum(), shapes=shapes())
        state, found = step.init(seed=0), []
        for batch in batches():
            state, metrics = step(state, batch)
            found.append(metrics["loss"].item())
            if moves:
                double(held)
        return found

    assert losses(moves=True) == losses(moves=False)
