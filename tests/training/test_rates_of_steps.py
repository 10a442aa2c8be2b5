"""The learning rate that a step tells and checks is the optimiser's, not a parameter's."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest

BATCH = {"x": np.ones((4, 3), np.float32), "t": np.zeros((4, 3), np.float32)}
OPTIMIZERS = {
    "adamw": ml.optim.adamw(0.25),
    "momentum": ml.optim.sgd(0.25, momentum=0.9),
    "ema": ml.optim.with_ema(ml.optim.adamw(0.25)),
    "master copies": ml.optim.with_master_copies(ml.optim.sgd(0.25)),
}


@ml.layer(parameters=("learning_rate", "count"))
def Odd(x, *, size: int = 0):  # noqa: N802
    """A layer whose parameters are called as parts of a state are."""
    shape = (size,) if size else ()
    rate = ml.parameter("learning_rate", shape, ml.Constant(-0.5))
    return x * rate + ml.parameter("count", shape, ml.Constant(0.5))


def take_step(optimizer: Any, made: ml.Model) -> tuple[ml.TrainState, dict[str, float]]:
    shapes = {name: x.shape for name, x in BATCH.items()}
    step = ml.train_step(made, ml.NumpyBackend(), optimizer, shapes=shapes)
    state, metrics = step(step.init(seed=0), BATCH)
    return state, metrics.numbers()


def odd(size: int, name: str = "odd") -> ml.Model:
    made = ml.Model()
    made |= ml.Linear(3, name="line")(input="x", output="h")
    made |= Odd(size=size, name=name)(x="h", output="y")
    made |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return made


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_may_be_called_learning_rate(name: str, size: int) -> None:
    state, told = take_step(OPTIMIZERS[name], odd(size))
    assert told["learning_rate"] == 0.25
    rates = ml.optim.find_learning_rates(state.optimizer, state.params)
    assert [x.item() for x in rates.values()] == [0.25]


def test_the_only_parameter_may_be_called_learning_rate() -> None:
    backend = ml.NumpyBackend()
    params = {"learning_rate": backend.array(-0.5)}
    for optimizer in OPTIMIZERS.values():
        state = optimizer.init(params)
        rates = ml.optim.find_learning_rates(state, params)
        assert [x.item() for x in rates.values()] == [0.25]


def test_of_several_rates_the_first_is_told() -> None:
    optimizer = ml.optim.muon(0.02, adam_learning_rate=1e-3)
    state, told = take_step(optimizer, odd(3))
    assert told["learning_rate"] == np.float32(0.02)
    rates = ml.optim.find_learning_rates(state.optimizer, state.params)
    assert {float(x.item()) for x in rates.values()} == {*map(float, np.float32([0.02, 1e-3]))}


def test_rates_that_are_refused_are_those_of_the_optimiser() -> None:
    with pytest.raises(ml.OptionError, match=r"a schedule gives the learning rate -1.0 at step 0"):
        take_step(ml.optim.with_ema(ml.optim.sgd(lambda step: step - 1.0)), odd(0))
