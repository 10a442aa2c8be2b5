"""Measuring: the best few run in processes of their own, which may die, take long, or go on later."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import mithril as ml
import numpy as np
import pytest
from mithril.errors import MithrilWarning
from mithril.plan.serialize import plan_to_json
from mithril.runtime.balancing.trial import make_arguments
from mithril.runtime.strategy import Findings
from mithril.tuning import measure
from mithril.tuning.measure import MOST, Contender, Worker, check_measurable, measure_best
from mithril.tuning.progress import Progress
from mithril.tuning.record import Measurement, Record

from tests.tuning.models import make_mlp

SHAPES = {"x": (16, 8)}


def make_plan(backend: ml.Backend) -> str:
    return plan_to_json(ml.compile(make_mlp(), backend, shapes=SHAPES).plan)


def test_a_record_of_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    message = "has no effect, as nothing is measured; give an open backend that can measure"
    with pytest.raises(ml.OptionError, match=f"^record='{path}' {message}"):
        ml.auto_tune(make_mlp(), ml.NumpyBackend(), input_shapes=SHAPES, record=path, measure=False)
    assert not path.exists()


@pytest.mark.slow
def test_the_fastest_is_taken_and_kept_in_a_record(tmp_path: Path) -> None:
    backend, path = ml.NumpyBackend(ml.Mesh(data=2)), tmp_path / "record.jsonl"
    given = {"input_shapes": SHAPES, "tuning_budget_hours": 0.01, "record": path}
    found = ml.auto_tune(make_mlp(), backend, **given)
    assert found.findings.measured is not None and found.findings.measured > 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert 1 <= len(rows) <= MOST
    medians = [sorted(r["seconds"])[len(r["seconds"]) // 2] for r in rows]
    assert found.findings.measured in medians
    assert found.findings.measured <= min(medians) * (1 + measure.ALIKE)
    # Begun anew, it runs nothing: all is found in the record, a line that was cut off aside.
    path.write_text(path.read_text() + '{"version": 1, "key": "ab')
    start = time.monotonic()
    again = ml.auto_tune(make_mlp(), backend, **given)
    assert again.findings.measured == found.findings.measured
    assert time.monotonic() - start < 10
    assert len(path.read_text().splitlines()) == len(rows) + 1


@pytest.mark.slow
def test_a_worker_that_dies_or_takes_long_is_an_error() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    worker = Worker(backend)
    assert worker.ask({"key": "a", "plan": make_plan(backend)}, 60.0) == {"ready": True}
    assert len(worker.ask({"key": "a", "runs": 3}, 60.0)["seconds"]) == 3
    assert worker.ask({"key": "a", "runs": 10**9}, 0.2)["error"] == "takes longer than 200 ms"
    for _ in range(2):
        answer = worker.ask({"key": "a", "runs": 1}, 30.0)
        assert answer["error"].startswith("the process ended with")
    worker.end()
    other = Worker(backend)
    assert "GraphError" in other.ask({"key": "a", "plan": "{}"}, 60.0)["error"]
    other.end()


class Timed:
    """Stands for a process: plans take as long as is said, and one of them ends it."""

    TAKE: ClassVar = {"first": 1.0, "alike": 1.03, "slow": 3.0}
    started = 0
    runs: ClassVar[Counter[str]] = Counter()

    def __init__(self, backend: ml.Backend) -> None:
        self.has_ended = False
        Timed.started += 1

    def ask(self, what: Mapping[str, Any], limit: float) -> dict[str, object]:
        key, times = what["key"], what.get("runs")
        assert not self.has_ended
        if key not in self.TAKE:
            self.has_ended = True
            return {"error": "the process ended with code -9"}
        if times is None:
            return {"ready": True}
        Timed.runs[key] += times
        return {"seconds": [self.TAKE[key]] * times}

    def end(self) -> None:
        self.has_ended = True


def use_worker(monkeypatch: pytest.MonkeyPatch, worker: type[Timed]) -> None:
    """Have strategies measured by a stand-in, which knows them by their schedule."""
    monkeypatch.setattr(Timed, "started", 0)
    monkeypatch.setattr(Timed, "runs", Counter())
    monkeypatch.setattr(measure, "Worker", worker)
    monkeypatch.setattr(
        measure, "_contend", lambda tuned, backend, s: Contender(s, s.schedule, s.schedule)
    )


def test_what_is_slower_is_run_less_and_what_is_alike_goes_by_its_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predicted = {"deadly": 0.1, "slow": 0.4, "alike": 0.5, "first": 0.9}
    strategies = [
        ml.Strategy({"data": 1}, {}, {}, schedule=name, findings=Findings(seconds=seconds))
        for name, seconds in predicted.items()
    ]
    use_worker(monkeypatch, Timed)
    found = measure_best(
        ml.NumpyBackend(), None, strategies, 60.0, None, Progress(False), has_to=True
    )
    assert (found.schedule, found.findings.measured) == ("alike", 1.03)
    assert Timed.started == 2  # once more, after one plan had ended the first
    assert Timed.runs["slow"] == 2  # once to know how long it takes, and in the first turn
    assert Timed.runs["first"] == Timed.runs["alike"] == 1 + measure.TURNS


def test_what_cannot_be_run_after_all_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fragile(Timed):
        def ask(self, what: Mapping[str, Any], limit: float) -> dict[str, object]:
            if what["key"] == "first" and "runs" in what:
                return {"error": "MemoryError: no"}
            return super().ask(what, limit)

    strategies = [ml.Strategy({"data": 1}, {}, {}, schedule=name) for name in Timed.TAKE]
    use_worker(monkeypatch, Fragile)
    found = measure_best(
        ml.NumpyBackend(), None, strategies, 60.0, None, Progress(False), has_to=True
    )
    assert found.schedule == "alike"


def test_what_cannot_be_prepared_again_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One plan ends the first process, and another one the second, where it ran well before."""

    class Fragile(Timed):
        def ask(self, what: Mapping[str, Any], limit: float) -> dict[str, object]:
            is_again = Timed.started == 2 and what["key"] == "first"
            return super().ask({**what, "key": "dead"} if is_again else what, limit)

    names = ("slow", "first", "deadly", "alike")
    strategies = [ml.Strategy({"data": 1}, {}, {}, schedule=name) for name in names]
    use_worker(monkeypatch, Fragile)
    found = measure_best(
        ml.NumpyBackend(), None, strategies, 60.0, None, Progress(False), has_to=True
    )
    assert (found.schedule, Timed.started) == ("alike", 3)


def test_what_could_not_be_run_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = Record(tmp_path / "record.jsonl")
    record.add("first", "data=1", Measurement(error="MemoryError: no"))
    record.add("alike", "data=1", Measurement((1.5,)))
    strategies = [ml.Strategy({"data": 1}, {}, {}, schedule=name) for name in Timed.TAKE]
    use_worker(monkeypatch, Timed)
    found = measure_best(
        ml.NumpyBackend(), None, strategies, 60.0, record.path, Progress(False), has_to=True
    )
    assert found.schedule == "first"
    assert "alike" not in Timed.runs
    assert record.load()["first"].median == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["memory_usage", "communication"])
def test_bytes_are_not_measured(objective: str) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    given = {"input_shapes": SHAPES, "tuning_objective": objective}
    found = ml.auto_tune(make_mlp(), backend, **given)
    least = ml.auto_tune(make_mlp(), backend, **given, measure=False)
    assert found == least
    assert found.findings.measured is None
    with pytest.raises(ml.OptionError, match=rf"takes times, and tuning_objective='{objective}'"):
        ml.auto_tune(make_mlp(), backend, **given, measure=True)


def test_plans_are_run_with_values_as_a_layer_draws_them() -> None:
    model = make_mlp(256, 256)
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    shapes = {"x": (16, 256), "t": (16, 256)}
    plans = [
        ml.compile(model, ml.NumpyBackend(), shapes=shapes).plan,
        ml.train_step(model, ml.NumpyBackend(), ml.optim.adam(1e-3), shapes=shapes).plan,
    ]
    once, step = (make_arguments(plan, np.random.default_rng(0)) for plan in plans)
    for made in (once, step):
        assert made["up.weight"].std() == pytest.approx(1 / 16, rel=0.1)
        assert made["x"].std() == pytest.approx(1.0, rel=0.1)
    assert once["output_gradients.loss"] == 1.0
    assert not step["optimizer.0.nu.up.weight"].any()


def test_what_no_process_can_open_again() -> None:
    backend = ml.NumpyBackend()
    backend.own_options = {"device": object()}
    with pytest.raises(ml.BackendError, match="measure=True opens backend 'numpy' again elsewhere"):
        check_measurable(backend)
    found = ml.auto_tune(make_mlp(), backend, input_shapes=SHAPES)  # predicted, then
    assert found.findings.measured is None


def test_a_job_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ml.NumpyBackend()
    monkeypatch.setattr(type(backend.engine), "process_count", 2)
    with pytest.raises(ml.BackendError, match="measure=True starts processes of its own, and the"):
        check_measurable(backend)


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    record = Record(path)
    record.add("a", "data=2", Measurement((1.0, 3.0, 2.0)))
    record.add("b", "data=2", Measurement(error="out of memory"))
    assert record.load() == {
        "a": Measurement((1.0, 3.0, 2.0)), "b": Measurement(error="out of memory"),
    }  # fmt: skip
    assert record.load()["a"].median == 2.0
    assert record.load()["b"].median == float("inf")
    path.write_text('{"version": 9, "key": "a"}\n')
    with pytest.raises(ml.OptionError, match=r", and this Mithril reads 1; give another file"):
        record.load()
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ml.OptionError, match=r"record '.*record.jsonl' cannot be read; "):
        record.load()


def test_if_none_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "MemoryError: no"

    class Full(Timed):
        def ask(self, what: Mapping[str, Any], limit: float) -> dict[str, object]:
            return {"error": error}

    use_worker(monkeypatch, Full)
    strategies = [ml.Strategy({"data": 1}, {}, {}, schedule=name) for name in Timed.TAKE]
    given = (ml.NumpyBackend(), None, strategies, 60.0, None, Progress(False))
    with pytest.raises(
        ml.PlanError,
        match=r"auto_tune measures 3 strategies and none runs; the first says 'MemoryError: no'; "
        r"choose with measure=False, or tune with less memory",
    ):
        measure_best(*given, has_to=True)
    with pytest.warns(
        MithrilWarning, match="none runs; .* no'; the best by prediction is returned"
    ):
        assert measure_best(*given, has_to=False) is strategies[0]
    error = "UnknownNameError: op 'own' is not known here"
    with pytest.raises(
        ml.PlanError,
        match="not known here'; they run in a process of their own, which has the ops and kernels "
        "of plugins and none of a script; choose with measure=False, or bring them by a plugin",
    ):
        measure_best(*given, has_to=True)
