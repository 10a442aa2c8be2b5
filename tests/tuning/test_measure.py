"""Measuring: the best few run in processes of their own, which may die, take long, or go on later."""

from __future__ import annotations

import json
import time
from pathlib import Path

import mithril as ml
import pytest
from mithril.plan.serialize import plan_to_json
from mithril.tuning.measure import MOST, Worker, check_measurable
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


def test_the_fastest_is_taken_and_kept_in_a_record(tmp_path: Path) -> None:
    backend, path = ml.NumpyBackend(ml.Mesh(data=2)), tmp_path / "record.jsonl"
    given = {"input_shapes": SHAPES, "tuning_budget_hours": 0.01, "record": path}
    found = ml.auto_tune(make_mlp(), backend, **given)
    assert found.findings.measured is not None and found.findings.measured > 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert 1 <= len(rows) <= MOST
    assert (
        min(sorted(r["seconds"])[len(r["seconds"]) // 2] for r in rows) == found.findings.measured
    )
    # Begun anew, it runs nothing: all is found in the record, a line that was cut off aside.
    path.write_text(path.read_text() + '{"version": 1, "key": "ab')
    start = time.monotonic()
    again = ml.auto_tune(make_mlp(), backend, **given)
    assert again.findings.measured == found.findings.measured
    assert time.monotonic() - start < 10
    assert len(path.read_text().splitlines()) == len(rows) + 1


def test_a_worker_that_dies_or_takes_long_is_an_error() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    worker = Worker(backend)
    assert worker.ask({"key": "a", "plan": make_plan(backend)}, 60.0) == {"ready": True}
    assert len(worker.ask({"key": "a", "runs": 3}, 60.0)["seconds"]) == 3
    assert worker.ask({"key": "a", "runs": 10**9}, 0.2)["error"] == "takes longer than 200 ms"
    assert worker.ask({"key": "a", "runs": 1}, 1.0)["error"].startswith("the process ended with")
    worker.end()
    other = Worker(backend)
    assert "GraphError" in other.ask({"key": "a", "plan": "{}"}, 60.0)["error"]
    other.end()


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
    monkeypatch.setattr(Worker, "ask", lambda self, what, limit: {"error": "MemoryError: no"})
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    with pytest.raises(ml.PlanError, match="strategies and none runs; the first says 'MemoryError"):
        ml.auto_tune(make_mlp(), backend, input_shapes=SHAPES, measure=True)
    found = ml.auto_tune(make_mlp(), backend, input_shapes=SHAPES)
    assert found.findings.measured is None
