"""Ctrl-C in a loop of one's own: what the caller has afterwards is a state that can be gone on with."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.runtime.interrupts import MOMENT, HeldInterrupts

from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
WIDTH = 64
rng = np.random.default_rng(0)
BATCH = {name: rng.standard_normal((32, WIDTH), np.float32) for name in ("x", "t")}


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Leave nothing to the next test: no interrupt, no handler."""
    yield
    time.sleep(2 * MOMENT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def make_step(backend: ml.Backend) -> Any:
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="up")(input="x", output="h")
    model += ml.Gelu(name="act")
    model += ml.Linear(WIDTH, name="down")(output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    rows = {name: ml.TensorSpec(x.shape, sharding=ml.P("data")) for name, x in BATCH.items()}
    return ml.train_step(model, backend, ml.optim.sgd(1e-3), shapes=rows)


def strike() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def after(seconds: float, act: Callable[[], None] = strike) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


def open_backend(name: str) -> ml.Backend:
    mesh = ml.Mesh(data=2)
    if name == "torch":
        return ml.TorchBackend(mesh, device="cpu", timeout=60)
    return ml.NumpyBackend(mesh)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_loop_keeps_its_state(name: str) -> None:
    if name == "torch":
        pytest.importorskip("mithril_torch")
    single = make_step(ml.NumpyBackend(ml.Mesh(data=1)))
    step, dice = make_step(open_backend(name)), random.Random(0)
    state, _ = step(step.init(seed=0), BATCH)  # which is planned and lowered
    for _ in range(6):
        state = step.init(seed=0)
        timer = after(dice.uniform(0, 0.05))
        with pytest.raises(KeyboardInterrupt):
            while True:
                state, metrics = step(state, BATCH)
        timer.join()
        count = int(state.step)
        reference = make_reference(single, count)
        for parameter, x in state.params.items():
            np.testing.assert_allclose(x.numpy(), reference[parameter], RTOL, 10 * ATOL)
        state, metrics = step(state, BATCH)
        assert int(state.step) == count + 1
        assert np.isfinite(float(metrics["loss"]))


def make_reference(step: Any, count: int) -> dict[str, np.ndarray]:
    """Return the parameters of one device after so many steps."""
    state = step.init(seed=0)
    for _ in range(count):
        state, _ = step(state, BATCH)
    return {name: x.numpy() for name, x in state.params.items()}


@pytest.mark.parametrize("calls", ["jit", "model"])
def test_what_is_donated_comes_back(calls: str) -> None:
    backend = ml.NumpyBackend()
    if calls == "jit":
        add = ml.jit(lambda x: x + 1.0, donate=(0,))
    else:
        model = ml.compile(ml.Linear(8, name="f"), backend, shapes={"input": (8, 8)})
        params = model.randomize_params(seed=0)

        def add(x: Any) -> Any:
            return model.evaluate(params, {"input": x}, donate=("input",))["output"]

    x, dice = backend.ones(8, 8), random.Random(1)
    for _ in range(30):
        timer = after(dice.uniform(0, 0.01))
        with pytest.raises(KeyboardInterrupt):
            while True:
                x = add(x)
        timer.join()
        assert x.numpy().shape == (8, 8)


def test_an_interrupt_waits_for_the_call_and_no_longer(capsys: pytest.CaptureFixture[str]) -> None:
    started, made = time.monotonic(), list[int]()
    with pytest.raises(KeyboardInterrupt):
        with HeldInterrupts():
            strike()
            made.append(1)
        made.append(2)
        time.sleep(30)
    assert made == [1, 2]
    assert time.monotonic() - started < 20 * MOMENT + 5
    assert capsys.readouterr().err.startswith("mithril: Ctrl-C waits for the results of this call")


def test_it_comes_before_the_next_call() -> None:
    with HeldInterrupts():
        strike()
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        sys.exit("not interrupted")


@pytest.mark.parametrize("when", ["in the call", "after it"])
def test_a_second_one_does_not_wait(when: str) -> None:
    made = list[int]()
    with pytest.raises(KeyboardInterrupt):
        with HeldInterrupts():
            strike()
            if when == "in the call":
                strike()
            made.append(1)
        strike()
        made.append(2)
    assert made == ([] if when == "in the call" else [1])


def test_results_get_their_names_after_the_call() -> None:
    """Between the end of the call and the assignment an interrupt waits, too."""

    def call() -> int:
        with HeldInterrupts():
            made = 1
        strike()
        return made

    result = 0
    with pytest.raises(KeyboardInterrupt):
        result = call()
        time.sleep(30)
    assert result == 1
    time.sleep(2 * MOMENT)
    with pytest.raises(KeyboardInterrupt):
        strike()


def test_a_call_that_fails_is_interrupted_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), HeldInterrupts():
        strike()
        raise ValueError("of the call")


def test_a_handler_of_the_user_hears_of_it_at_once() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with HeldInterrupts():
            strike()
            assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_held_where_nothing_is_given_up() -> None:
    with pytest.raises(KeyboardInterrupt), HeldInterrupts(is_needed=False):
        strike()
        sys.exit("not interrupted")
