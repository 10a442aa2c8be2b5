"""Schedules have optax's values, as arrays, in functions, and as numbers to look at."""

from __future__ import annotations

from collections.abc import Callable

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import optim

from tests.optim.training import open_jax
from tests.tolerances import TOLERANCE

optax = pytest.importorskip("optax")

CASES = {
    "constant": (optim.constant_schedule(0.3), optax.constant_schedule(0.3)),
    "linear": (optim.linear_schedule(0.5, 0.1, 20), optax.linear_schedule(0.5, 0.1, 20)),
    "linear, later": (optim.linear_schedule(0.0, 1.0, 7, 5), optax.linear_schedule(0.0, 1.0, 7, 5)),
    "cosine": (
        optim.cosine_decay_schedule(0.5, 30, 0.1),
        optax.cosine_decay_schedule(0.5, 30, 0.1),
    ),
    "warm-up and cosine": (
        optim.warmup_cosine_decay_schedule(0.1, 1.0, 10, 30, 0.05),
        optax.warmup_cosine_decay_schedule(0.1, 1.0, 10, 30, 0.05),
    ),
    "no warm-up": (
        optim.warmup_cosine_decay_schedule(0.1, 1.0, 0, 30),
        optax.cosine_decay_schedule(1.0, 30),
    ),
    "warm-up, stable, decay": (
        optim.warmup_stable_decay_schedule(1.0, 5, 12, 8, 0.1, 0.01),
        optax.join_schedules(
            [
                optax.linear_schedule(0.1, 1.0, 5),
                optax.constant_schedule(1.0),
                optax.linear_schedule(1.0, 0.01, 8),
            ],
            [5, 17],
        ),
    ),
    "piecewise": (
        optim.piecewise_constant_schedule(0.5, {20: 0.5, 10: 0.1}),
        optax.piecewise_constant_schedule(0.5, {10: 0.1, 20: 0.5}),
    ),
    "joined": (
        optim.join_schedules(
            [optim.linear_schedule(0.0, 1.0, 4), optim.cosine_decay_schedule(1.0, 9)], [6]
        ),
        optax.join_schedules(
            [optax.linear_schedule(0.0, 1.0, 4), optax.cosine_decay_schedule(1.0, 9)], [6]
        ),
    ),
}
STEPS = 40


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_has_the_values_of_optax(case: str) -> None:
    ours, theirs = CASES[case]
    rtol, atol = TOLERANCE["float32"]
    open_jax()
    expected = [float(theirs(step)) for step in range(STEPS)]
    np.testing.assert_allclose(ours(np.arange(STEPS)), expected, rtol=rtol, atol=atol)
    backend = ml.NumpyBackend()
    run = ml.jit(ours)
    for step in (0, 4, 5, 6, 10, 17, 20, 30, STEPS - 1):
        array = backend.array(step, dtype="int32")
        for made in (ours(array), run(array)):
            assert (str(made.dtype), made.shape) == ("float32", ())
            np.testing.assert_allclose(made.item(), expected[step], rtol=rtol, atol=atol)
        number = ours(step)
        assert number.dtype == np.float32
        np.testing.assert_allclose(number, expected[step], rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda step: 0.1 * 0.5 ** mnp.floor(step / 2),
        optim.join_schedules([lambda step: 0.1, lambda step: 0.05, lambda step: 0.025], [2, 4]),
    ],
    ids=["a function", "joined"],
)
def test_one_s_own_function_is_a_schedule(schedule: Callable) -> None:
    backend = ml.NumpyBackend()
    optimizer = optim.sgd(schedule)
    params = {"w": backend.array([1.0])}
    state = optimizer.init(params)
    run = ml.jit(optimizer.apply)
    rates = []
    for _ in range(5):
        before = params["w"].item()
        params, state = run({"w": backend.array([1.0])}, state, params)
        (rate,) = optim.find_learning_rates(state).values()
        rates.append(rate.item())
        assert before - params["w"].item() == pytest.approx(rate.item(), rel=1e-4)
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025])
    assert run.recompiles <= 2


def test_a_rate_may_be_an_argument_of_a_function() -> None:
    backend = ml.NumpyBackend()

    def step(params: dict, rate: object) -> tuple:
        optimizer = optim.sgd(rate)
        return optimizer.apply(params, optimizer.init(params), params)

    run = ml.jit(step)
    for rate in (0.5, 0.25):
        params, state = run({"w": backend.array([1.0])}, backend.array(rate))
        assert params["w"].item() == 1 - rate
        assert state[0]["learning_rate"].item() == rate
    assert run.recompiles == 1
