"""Ctrl-C in a loop of one's own: what the caller has afterwards is a state that can be gone on with."""

from __future__ import annotations

import _thread
import io
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
from mithril.runtime import interrupts
from mithril.runtime.interrupts import DELIVERY_DELAY, hold_interrupts

from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
WIDTH = 64
rng = np.random.default_rng(0)
BATCH = {name: rng.standard_normal((32, WIDTH), np.float32) for name in ("x", "t")}


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Leave nothing behind: no interrupt for the next test, and no handler of Mithril's."""
    yield
    time.sleep(2 * DELIVERY_DELAY)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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


def strike_after(seconds: float) -> None:
    threading.Timer(seconds, strike).start()


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
        with pytest.raises(KeyboardInterrupt):
            strike_after(dice.uniform(0, 0.05))
            while True:
                state, metrics = step(state, BATCH)
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
        with pytest.raises(KeyboardInterrupt):
            strike_after(dice.uniform(0, 0.01))
            while True:
                x = add(x)
        assert x.numpy().shape == (8, 8)


class Striking:
    """What interrupts when the frame that holds it ends, after all that its function does."""

    __del__ = staticmethod(_thread.interrupt_main)


def never() -> None:
    sys.exit("not interrupted")


def test_an_interrupt_waits_for_the_call_and_no_longer(capsys: pytest.CaptureFixture[str]) -> None:
    started, made = time.monotonic(), list[int]()

    def call() -> None:
        strike()
        made.append(1)

    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(True, call)
        made.append(2)
        time.sleep(30)
    assert made == [1, 2]
    assert time.monotonic() - started < 20 * DELIVERY_DELAY + 5
    assert capsys.readouterr().err.startswith("mithril: Ctrl-C waits for the results of this call")


def test_it_comes_before_the_next_call() -> None:
    hold_interrupts(True, strike)
    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(True, never)


def test_it_comes_after_the_outermost_call() -> None:
    made = list[int]()

    def outer() -> None:
        hold_interrupts(True, strike)
        hold_interrupts(True, made.append, 1)

    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(True, outer)
        made.append(2)
        time.sleep(30)
    assert made == [1, 2]


@pytest.mark.parametrize("when", ["in the call", "after it"])
def test_a_second_one_does_not_wait(when: str) -> None:
    made = list[int]()

    def call() -> None:
        strike()
        if when == "in the call":
            strike()
        made.append(1)

    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(True, call)
        strike()
        made.append(2)
    assert made == ([] if when == "in the call" else [1])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_a_second_one_the_next_call_is_held_as_any() -> None:
    def call() -> None:
        strike()
        strike()

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            hold_interrupts(True, call)
    hold_interrupts(True, strike)
    with pytest.raises(KeyboardInterrupt):
        time.sleep(30)


def test_a_second_one_that_comes_when_the_call_ends_leaves_nothing_held() -> None:
    def call() -> None:
        last = Striking()
        strike()
        del last  # and Python looks for it when this function has returned

    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(True, call)
        never()
    with pytest.raises(KeyboardInterrupt):
        strike()


@pytest.mark.parametrize("call", ["function", "object"])
def test_results_get_their_names_after_the_call(call: str) -> None:
    """Between the end of the call and the assignment an interrupt waits, too."""

    class Step:
        def __call__(self) -> int:
            last = Striking()
            return hold_interrupts(True, int, 1) if last else 0

    step: Callable[[], int] = Step() if call == "object" else Step().__call__
    result = 0
    with pytest.raises(KeyboardInterrupt):
        result = step()
        time.monotonic()  # after which Python looks for signals
        time.sleep(30)
    assert result == 1
    time.sleep(2 * DELIVERY_DELAY)
    with pytest.raises(KeyboardInterrupt):
        strike()


def test_a_call_that_fails_is_interrupted_at_once() -> None:
    def call() -> None:
        strike()
        raise ValueError("of the call")

    with pytest.raises(KeyboardInterrupt) as caught:
        hold_interrupts(True, call)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_handler_of_the_user_hears_of_it_at_once() -> None:
    heard: list[int] = []

    def call() -> None:
        strike()
        assert heard == [signal.SIGINT]

    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        hold_interrupts(True, call)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_comes_after_the_call_hears_of_what_waited() -> None:
    """It is heard of once: what another handler was told does not stop the next call."""
    heard: list[int] = []
    hold_interrupts(True, strike)
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        time.sleep(3 * DELIVERY_DELAY)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
    assert hold_interrupts(True, int, 1) == 1
    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(True, strike)
        time.sleep(30)


def test_nothing_is_held_where_nothing_is_given_up() -> None:
    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(False, lambda: [strike(), never()])


def test_nothing_is_held_in_a_job_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    hold_interrupts(True, int, 1)  # before the job is known
    monkeypatch.setattr(interrupts, "find_place", lambda: (0, 2))
    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(True, lambda: [strike(), never()])


def test_the_user_is_told_in_the_middle_of_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python refuses a second `print` of the thread that an interrupt stopped in the first one."""
    lines = SlowLines()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(lines)))
    monkeypatch.setattr(lines, "act", strike)
    with pytest.raises(KeyboardInterrupt):
        hold_interrupts(True, lambda: print("of a progress bar", file=sys.stderr, flush=True))
        time.sleep(30)
    sys.stderr.flush()
    assert b"of a progress bar" in lines.written
    assert b"mithril: Ctrl-C waits for the results of this call" in lines.written


class SlowLines(io.RawIOBase):
    """A terminal; `act` happens while it writes the first line."""

    act: Callable[[], None] | None = None
    written = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        act, self.act = self.act, None
        if act is not None:
            act()
        self.written += bytes(data)
        return len(data)
