"""The loop: steps in order, rows of the log, checkpoints, how it ends; with a stand-in step."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

X = np.arange(40, dtype=np.float32).reshape(20, 2)


class Metrics(Mapping[str, Any]):
    """Counts how often it is read."""

    def __init__(self, read: list[str], **values: Any) -> None:
        self.read, self.values_ = read, values

    def __getitem__(self, name: str) -> Any:
        self.read.append(name)
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


def add(state: float, batch: Any) -> tuple[float, dict[str, float]]:
    total = state + float(batch.numpy().sum() if isinstance(batch, ml.Array) else batch)
    return total, {"loss": total / 2}


def make(**options: Any) -> ml.data.Batches:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    return ml.data.batches(X, 4, **{"backend": backend, "sharding": P("data"), **options})


# ---------------------------------------------------------------------- steps and rows


def test_a_step_after_the_other() -> None:
    state, history = ml.train(add, 0.0, [1, 2, 3, 4, 5], log_every=2, progress=False)
    assert state == 15
    assert history["loss"] == {2: 1.5, 4: 5.0, 5: 7.5}
    assert (history.step, history.end) == (5, "batches")
    assert all(row["seconds"] <= history.seconds for row in history.rows)
    assert history.names == ("loss", "seconds")
    assert repr(history) == "<history of 3 rows up to step 5: 'loss', 'seconds'>"
    with pytest.raises(ml.UnknownNameError, match="history has no 'los'; did you mean 'loss'"):
        history["los"]


def test_metrics_are_read_in_the_first_step_and_in_logged_ones() -> None:
    read: list[str] = []

    def step(state: int, batch: int) -> tuple[int, Metrics]:
        return state + 1, Metrics(read, loss=np.float32(batch))

    ml.train(step, 0, range(7), log_every=3, progress=False)
    assert len(read) == 1 + 3


def test_a_train_loop_of_arrays_on_a_mesh() -> None:
    """Least squares by gradient descent: the loop is that of ten lines."""
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 3)).astype(np.float32)
    data = {"x": x, "y": x @ np.array([1.0, -2.0, 0.5], np.float32)}

    def loss(w: ml.Array, batch: Any) -> Any:
        return ((batch["x"] @ w - batch["y"]) ** 2).mean()

    gradient = ml.jit(ml.value_and_grad(loss))

    def step(state: ml.Array, batch: Any) -> tuple[ml.Array, dict[str, Any]]:
        value, slope = gradient(state, batch)
        return state - 0.2 * slope, {"loss": value}

    def batches() -> ml.data.Batches:
        return ml.data.batches(data, 8, backend=backend, sharding=P("data"), shuffle=1, epochs=None)

    start = backend.zeros(3)
    state, history = ml.train(step, start, batches(), steps=20, log_every=1, progress=False)
    expected, losses = backend.zeros(3), []
    for _, batch in zip(range(20), batches(), strict=False):
        expected, metrics = step(expected, batch)
        losses.append(float(metrics["loss"]))
    np.testing.assert_array_equal(state.numpy(), expected.numpy())
    assert [*history["loss"].values()] == losses
    assert losses[-1] < losses[0] / 10
    assert [*history["samples_per_second"]] == [*range(2, 21)], "the first step compiles"
    assert min(history["samples_per_second"].values()) > 0


def test_steps_are_counted_from_the_start() -> None:
    state, history = ml.train(add, 0.0, [1] * 9, steps=12, start=9, log_every=2, progress=False)
    assert state == 3
    assert history["loss"] == {10: 0.5, 12: 1.5}
    assert history.end == "steps"
    state, history = ml.train(add, 5.0, [1] * 9, steps=12, start=12, progress=False)
    assert (state, history.rows) == (5, ())


def test_no_batch_is_taken_too_many() -> None:
    numbers = iter(range(10))
    ml.train(add, 0.0, numbers, steps=3, progress=False)
    assert next(numbers) == 3
    assert ml.train(add, 0.0, numbers, steps=2, progress=False).state == 4 + 5
    batches = make(epochs=None)
    ml.train(add, 0.0, batches, steps=2, progress=False)
    assert batches.state()["position"] == 8
    assert not [thread for thread in threading.enumerate() if "batches" in thread.name]


def test_fewer_batches_than_steps_are_told() -> None:
    text = "batches ended after step 2 of 5; give more of them, such as epochs=None"
    with pytest.warns(ml.MithrilWarning, match=text):
        _, history = ml.train(add, 0.0, [1, 2], steps=5, progress=False)
    assert history.end == "batches"


def test_evaluating() -> None:
    seen: list[float] = []

    def evaluate(state: float) -> dict[str, float]:
        seen.append(state)
        return {"loss": -state}

    _, history = ml.train(
        add, 0.0, [1] * 5, log_every=4, evaluate=evaluate, evaluate_every=2, progress=False
    )
    assert seen == [2, 4, 5]
    assert history["evaluate/loss"] == {2: -2, 4: -4, 5: -5}
    assert history["loss"] == {4: 2.0, 5: 2.5}
    seen.clear()
    ml.train(add, 0.0, [1] * 5, steps=5, evaluate=evaluate, progress=False)
    assert seen == [5]


def test_callbacks_see_each_step_and_may_end_it() -> None:
    seen: list[tuple[int, float, float]] = []

    def note(number: int, state: float, metrics: Mapping[str, float]) -> None:
        seen.append((number, state, metrics["loss"]))

    def stop(number: int, state: float, metrics: Mapping[str, float]) -> bool:
        return number == 3

    state, history = ml.train(add, 0.0, [1] * 9, callbacks=[stop, note], progress=False)
    assert (state, history.end) == (3, "callback")
    assert seen == [(1, 1, 0.5), (2, 2, 1.0), (3, 3, 1.5)]
    assert history["loss"] == {3: 1.5}


# ---------------------------------------------------------------------- saving, going on, Ctrl-C


def test_what_is_saved_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def step(state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], dict[str, float]]:
        new = {"w": 0.5 * state["w"] + batch.sum(axis=0), "n": state["n"] + 1}
        return new, {"loss": float(new["w"].numpy().sum())}

    def fresh() -> tuple[dict[str, Any], ml.data.Batches]:
        batches = make(shuffle=2, epochs=None)
        return {"w": batches._placing.backend.zeros(2), "n": 0}, batches

    state, batches = fresh()
    expected, whole = ml.train(step, state, batches, steps=12, log_every=1, progress=False)
    path = tmp_path / "run"
    state, batches = fresh()

    def stop(number: int, state: Any, metrics: Any) -> bool:
        return number == 7

    _, first = ml.train(
        step, state, batches, steps=12, log_every=1, callbacks=[stop], save=path, save_every=5,
        progress=False,
    )  # fmt: skip
    state, batches = fresh()
    found = ml.load(path, like={"state": state, "step": 0, "batches": batches.state()})
    assert found["step"] == 7, "it is saved at the end, too"
    batches.restore(found["batches"])
    last, rest = ml.train(
        step, found["state"], batches, steps=12, start=found["step"], log_every=1, progress=False
    )
    assert {**first["loss"], **rest["loss"]} == whole["loss"]
    np.testing.assert_array_equal(last["w"].numpy(), expected["w"].numpy())


def test_saving_every_so_many_steps(tmp_path: Path) -> None:
    seen = []

    def look(number: int, state: Any, metrics: Any) -> None:
        there = (tmp_path / "run/index.json").exists()
        seen.append(ml.load(tmp_path / "run")["step"] if there else 0)

    options = {"save": tmp_path / "run", "save_every": 2, "callbacks": [look]}
    ml.train(add, 0.0, [1] * 5, **options, progress=False)
    assert seen == [0, 2, 2, 4, 5], "the last one is known, and saved before it is told of"
    assert ml.load(tmp_path / "run") == {"state": 5.0, "step": 5}


def test_ctrl_c_ends_it_after_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    whole: list[int] = []

    def step(state: int, batch: int) -> tuple[int, dict[str, float]]:
        if batch == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        whole.append(batch)
        return state + batch, {"loss": 0.0}

    state, history = ml.train(step, 0, range(9), save=tmp_path / "run", progress=False)
    assert (state, history.end, history.step) == (6, "interrupt", 4)
    assert whole == [0, 1, 2, 3]
    assert ml.load(tmp_path / "run") == {"state": 6, "step": 4}
    assert signal.getsignal(signal.SIGINT) is before
    text = "mithril: training ends after this step; Ctrl-C again ends it at once\n"
    shown, until = "", time.monotonic() + 10
    while shown != text and time.monotonic() < until:  # a thread writes it
        shown += capsys.readouterr().err
        time.sleep(0.01)
    assert shown == text


def test_a_second_ctrl_c_ends_it_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)

    def step(state: int, batch: int) -> tuple[int, dict[str, float]]:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        raise AssertionError("it goes on")

    with pytest.raises(KeyboardInterrupt):
        ml.train(step, 0, range(9), progress=False)
    assert signal.getsignal(signal.SIGINT) is before


def test_training_in_a_thread() -> None:
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(ml.train(add, 0.0, [1, 2], progress=False).state)
    )
    thread.start()
    thread.join()
    assert found == [3]


# ---------------------------------------------------------------------- bad input


def train(step: Any = add, state: Any = 0.0, batches: Any = (1, 2), **options: Any) -> None:
    ml.train(step, state, batches, **{"progress": False, **options})


def give(result: Any) -> Callable[..., Any]:
    return lambda *given: result


CASES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: train(steps=0), ml.OptionError, "steps=0 is no number of steps; give 1 or more"),
    (lambda: train(steps=-3), ml.OptionError, "steps=-3 is no number of steps; give 1 or more"),
    (lambda: train(steps=1.5), ml.OptionError, "steps=1.5 is no number of steps; give 1 or more"),
    (
        lambda: train(start=-1), ml.OptionError,
        "start=-1 is no number of steps that are done; give 0 or more",
    ),
    (
        lambda: train(start=5, steps=3), ml.OptionError,
        "start=5 is behind steps=3, the last step; give a larger number of steps",
    ),
    (
        lambda: train(log_every=0), ml.OptionError,
        "log_every=0 is no number of steps; give 1 or more",
    ),
    (
        lambda: train(evaluate_every=2), ml.OptionError,
        "evaluate_every=2 is given without evaluate=; give both",
    ),
    (
        lambda: train(save_every=2), ml.OptionError,
        "save_every=2 is given without save=; give both",
    ),
    (
        lambda: train(step=give(None), save=3), ml.CheckpointError,
        "path is an int; give a text or a pathlib.Path",
    ),
    (
        lambda: train(step=give(None), save=Path(__file__).parent), ml.CheckpointError,
        "files that are no checkpoint",
    ),
    (
        lambda: train(step=give(None), save=f"{__file__}/run"), ml.CheckpointError,
        f"cannot be made; '{__file__}' is a file; give another path",
    ),
    (
        lambda: train(callbacks=[give(np.ones(3) > 0)]), ml.OptionError,
        "callback returned truth values of shape (3,); return one, such as x.any(), to end the",
    ),
    (
        lambda: train(step=give(None), save="run", log="run/deep/logs/"), ml.OptionError,
        "save='run' is where log='run/deep/logs/' is written",
    ),
    (
        lambda: train(step=give(None), save="run", log="run/"), ml.OptionError,
        "save='run' is where log='run/' is written; give a checkpoint a directory of its own",
    ),
    (
        lambda: train(save="run", save_every=0), ml.OptionError,
        "save_every=0 is no number of steps; give 1 or more",
    ),
    (
        lambda: train(batches=make(epochs=None)), ml.OptionError,
        "training would never end: steps=None, epochs=None; give one of them",
    ),
    (
        lambda: train(batches=3), ml.OptionError,
        "batches are an int; give what ml.data.batches returns, or an iterable",
    ),
    (lambda: train(step=3), ml.OptionError, "step is an int, which is no function; give one"),
    (
        lambda: train(evaluate="loss"), ml.OptionError,
        "evaluate is a str, which is no function; give one",
    ),
    (
        lambda: train(callbacks=print), ml.OptionError,
        "callbacks are a builtin_function_or_method; give a list of functions of the number of the "
        "step, the state and the metrics: callbacks=[log]",
    ),
    (
        lambda: train(callbacks=["print"]), ml.OptionError,
        "callback is a str, which is no function; give one",
    ),
    (
        lambda: train(step=give({"loss": 1.0})), ml.OptionError,
        "step returned a dict; a step of ml.train returns (state, metrics)",
    ),
    (
        lambda: train(step=give((0, 1.0))), ml.OptionError,
        "step returned a float as metrics; give a dict, such as {'loss': loss}",
    ),
    (
        lambda: train(evaluate=give(1.0)), ml.OptionError,
        "evaluate returned a float as metrics; give a dict",
    ),
    (
        lambda: train(step=give((0, {"loss": np.ones(3)}))), ml.ShapeError,
        "metric 'loss' has shape (3,); give one number, such as a mean",
    ),
    (
        lambda: train(step=give((0, {"loss": "low"}))), ml.OptionError,
        "metric 'loss' is a str; give a number, or an array of one element",
    ),
    (
        lambda: train(step=give((0, {"step": 1.0}))), ml.OptionError,
        "metric 'step' has the name of a figure that every training has; give it another",
    ),
    (
        lambda: train(log="run.txt"), ml.OptionError,
        "log='run.txt' is neither a CSV file nor a directory; give 'run.csv', or 'runs/' for "
        "TensorBoard",
    ),
    (
        lambda: train(log=[3]), ml.OptionError,
        "log=3 is no path; give 'run.csv', or 'runs/' for a directory",
    ),
    (
        lambda: train(log=""), ml.OptionError,
        "log='' is no path; give 'run.csv', or 'runs/' for a directory",
    ),
    (
        lambda: train(progress="x"), ml.OptionError,
        "progress='x' is neither True nor False; give one of them",
    ),
    (
        lambda: train(log="nowhere/at/all/run.csv"), ml.OptionError,
        "log 'nowhere/at/all/run.csv' cannot be written; [Errno 2] No such file or directory",
    ),
    (
        lambda: train(stepps=3), ml.OptionError,
        "train() has no option 'stepps'; did you mean 'steps'?",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[case[2][:40] for case in CASES])
def test_bad_input_is_refused(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        call()
