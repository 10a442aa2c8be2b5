"""The collector of cycles pauses while a plan is made, and is as it was before in the end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import mithril as ml
import numpy as np
import pytest
from mithril.compiler import pipeline
from mithril.compiler.collector import pause_collector
from mithril.mesh import Mesh


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.enable()
    yield
    if not was_on:
        gc.disable()


def test_it_pauses_while_a_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def note(*_: object) -> None:
        seen.append(gc.isenabled())

    monkeypatch.setattr(pipeline, "CHECKS", (*pipeline.CHECKS, note))
    function = ml.jit(lambda x: x * 2.0, backend=ml.NumpyBackend(Mesh(data=2)))
    function.plan(np.ones(4, np.float32))
    assert seen == [False]
    assert gc.isenabled()


def test_it_pauses_while_a_step_is_made() -> None:
    seen: list[bool] = []

    def choose_rate(step: ml.Array) -> float:
        seen.append(gc.isenabled())
        return 0.1

    model = ml.Model()
    model |= ml.Linear(1, name="line")(input="x", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    ml.train_step(
        model, ml.NumpyBackend(), ml.optim.sgd(choose_rate), shapes={"x": (4, 2), "t": (4, 1)}
    )
    assert seen and not any(seen)
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(KeyError), pause_collector():
        raise KeyError
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with pause_collector():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_it_goes_on_when_the_last_of_several_threads_is_done() -> None:
    begun, done = threading.Event(), threading.Event()

    def plan() -> None:
        with pause_collector():
            begun.set()
            done.wait()

    thread = threading.Thread(target=plan)
    with pause_collector():
        thread.start()
        begun.wait()
    assert not gc.isenabled()
    done.set()
    thread.join()
    assert gc.isenabled()
