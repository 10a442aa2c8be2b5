"""A training loses no state: it is saved before what may fail, and what cannot be is told at once."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest

from tests.training.test_loop import add, make


def fail(*given: Any) -> Any:
    raise ValueError("it went wrong")


def test_a_state_is_saved_before_it_is_evaluated_and_told_of(tmp_path: Path) -> None:
    for number, options in enumerate([{"evaluate": fail}, {"callbacks": [fail]}]):
        path = tmp_path / str(number)
        batches = [1] * (3 if number == 0 else 1)
        with pytest.raises(ValueError, match="it went wrong"):
            ml.train(add, 0.0, batches, save=path, progress=False, **options)
        assert ml.load(path) == {"state": float(len(batches)), "step": len(batches)}


def test_a_state_is_saved_where_its_metrics_cannot_be_read(tmp_path: Path) -> None:
    def step(state: int, batch: int) -> tuple[int, dict[str, Any]]:
        return state + 1, {"loss": np.ones(batch)}

    with pytest.raises(ml.ShapeError, match="metric 'loss' has shape"):
        ml.train(step, 0, [1, 1, 3], save=tmp_path / "run", progress=False)
    assert ml.load(tmp_path / "run")["step"] == 3


def test_nothing_is_saved_after_an_error_that_a_save_might_wait_behind(tmp_path: Path) -> None:
    """A process that is gone, or Ctrl-C while the devices are waited for: a save would hang."""

    class Loss:
        def __init__(self, number: int) -> None:
            self.number = number

        def __float__(self) -> float:
            if self.number == 2:
                raise ml.BackendError("a process is gone")
            return 1.0

    def step(state: int, batch: int) -> tuple[int, dict[str, Any]]:
        return state + 1, {"loss": Loss(batch)}

    with pytest.raises(ml.BackendError, match="a process is gone"):
        ml.train(step, 0, [1, 2], save=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_state_is_saved_before_a_second_ctrl_c_can_end_it(tmp_path: Path) -> None:
    def interrupt(state: Any) -> dict[str, float]:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return {}

    with pytest.raises(KeyboardInterrupt):
        ml.train(add, 0.0, [1] * 3, save=tmp_path / "run", evaluate=interrupt, progress=False)
    assert ml.load(tmp_path / "run")["step"] == 3


def test_a_log_that_cannot_be_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mithril.training import logs

    def append(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    for name in ("run.csv", "runs/"):
        log = f"{tmp_path}/{name}"

        def evaluate(state: float) -> dict[str, float]:
            monkeypatch.setattr(logs, "_append", append)
            monkeypatch.setattr(logs, "replace_file", append)
            return {}

        text = (
            r"log '.*run(s|.csv)' cannot be written; .*No space left on device; make room, or give"
        )
        with monkeypatch.context(), pytest.raises(ml.OptionError, match=text):
            ml.train(
                add, 0.0, [1] * 3, log=log, evaluate=evaluate, save=tmp_path / name[:3],
                progress=False,
            )  # fmt: skip
        monkeypatch.undo()
        assert ml.load(tmp_path / name[:3])["step"] == 3


def test_what_cannot_be_saved_is_told_before_the_first_step(tmp_path: Path) -> None:
    steps = []

    def step(state: Any, batch: int) -> tuple[Any, dict[str, float]]:
        steps.append(batch)
        return state, {}

    path = tmp_path / "run"
    with pytest.raises(ml.CheckpointError, match=r"leaf 'state/rng' is a numpy.Generator"):
        ml.train(step, {"rng": np.random.default_rng(0)}, [1], save=path, progress=False)
    assert not path.exists()
    path.mkdir()
    for text in ("{", json.dumps({"hello": 1})):
        (path / "index.json").write_text(text)
        with pytest.raises(ml.CheckpointError, match=r"index.json' is damaged"):
            ml.train(step, 0, [1], save=path, progress=False)
    assert not steps


def test_a_state_whose_sizes_are_known_by_the_first_step_is_saved(tmp_path: Path) -> None:
    compiled = ml.compile(ml.Linear(2, bias=False), ml.NumpyBackend())

    def step(state: Any, batch: Any) -> tuple[Any, dict[str, float]]:
        compiled.evaluate(state, {"input": batch})
        return state, {}

    batches = [np.ones((4, 3), np.float32)]
    params = compiled.randomize_params()
    ml.train(step, params, batches, save=tmp_path / "run", progress=False)
    assert ml.load(tmp_path / "run")["state"]["weight"].shape == (2, 3)


@pytest.mark.parametrize("name", ["seconds", "samples_per_second", "step"])
def test_a_name_that_is_taken_is_refused_in_the_first_step(name: str) -> None:
    steps = []

    def step(state: int, batch: int) -> tuple[int, dict[str, float]]:
        steps.append(batch)
        return state, {name: 1.0}

    with pytest.raises(ml.OptionError, match=f"metric '{name}' has the name of a figure"):
        ml.train(step, 0, [1] * 30, progress=False)
    assert len(steps) == 1


def test_truth_values_of_arrays_end_a_training() -> None:
    backend = ml.NumpyBackend()
    for answer in (np.True_, np.array([True]), backend.ones(()) > 0):
        _, history = ml.train(
            add, 0.0, [1] * 4, callbacks=[lambda *given, answer=answer: answer], progress=False
        )
        assert (history.step, history.end) == (1, "callback")
    others = (1, 37, "yes", np.ones(3), np.float32(1.0), backend.ones(2), print)
    for answer in (np.False_, np.array(False), False, None, *others):
        _, history = ml.train(
            add, 0.0, [1] * 4, callbacks=[lambda *given, answer=answer: answer], progress=False
        )
        assert history.end == "batches"


def test_a_loader_whose_length_is_not_implemented() -> None:
    class Loader:
        def __len__(self) -> int:
            raise NotImplementedError

        def __iter__(self) -> Any:
            return iter([np.ones(2), np.ones(2)])

    assert ml.train(lambda state, batch: (state + 1, {}), 0, Loader(), progress=False).state == 2
    batches = ml.data.batches(Loader(), backend=ml.NumpyBackend())
    assert batches.steps_per_epoch is None
    assert ml.train(add, 0.0, batches, progress=False).state == 4


def test_a_loader_whose_length_nobody_knows() -> None:
    torch = pytest.importorskip("torch")

    class Numbers(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Any:
            return iter([1.0, 2.0, 3.0])

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=None)
    state, history = ml.train(add, 0.0, loader, progress=False)
    assert (state, history.step) == (6.0, 3)


@pytest.mark.parametrize("options", [{"epochs": 1}, {"epochs": 3}, {"epochs": 3, "shuffle": 1}])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_training_that_was_finished_has_nothing_left(
    options: dict[str, int], is_stream: bool, tmp_path: Path
) -> None:
    def begin(epochs: int) -> ml.data.Batches:
        if not is_stream:
            return make(**{**options, "epochs": epochs})
        backend = ml.NumpyBackend()
        data = lambda: iter([np.ones(2), np.ones(2)])  # noqa: E731
        return ml.data.batches(data, backend=backend, epochs=epochs)

    batches = begin(options["epochs"])
    _, first = ml.train(add, 0.0, batches, save=tmp_path, progress=False)
    found = ml.load(tmp_path)
    batches = begin(options["epochs"])
    batches.restore(found["batches"])
    assert is_stream or batches.steps_left == 0
    assert (batches.epoch, batches.state()["epoch"]) == (found["batches"]["epoch"],) * 2
    text = f"batches have none left after step {first.step}: they were restored behind their last"
    with pytest.warns(ml.MithrilWarning, match=text):
        state, history = ml.train(
            add, found["state"], batches, start=found["step"], save=tmp_path, progress=False
        )
    assert (state, history.step, history.end) == (found["state"], first.step, "batches")
    batches = begin(options["epochs"] + 1)
    batches.restore(found["batches"])
    _, history = ml.train(add, 0.0, batches, start=found["step"], progress=False)
    assert history.step - first.step == first.step // options["epochs"], "one epoch more"
