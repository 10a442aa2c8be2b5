"""Published runs are predicted: utilisation within limits, and memory that fits where they ran.

Sources and settings of each row stand in `benchmarks.published_runs`. Figures of a device are those of
its profile, for all rows the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from statistics import median

import pytest

from benchmarks import published
from benchmarks.published import MEDIAN, WORST, format_row, judge
from benchmarks.published_runs import LLAMA3, NARAYANAN, Prediction, Run, runs

RUNS = {run.name: run for run in runs()}
QUICK = ("gpt-1.7B", "gpt-3.6B", "gpt-7.5B", "gpt-18.4B", "gpt-39.1B")
"""Those that are planned in less than a second."""
SLOW = tuple(name for name in RUNS if name not in QUICK)


@cache
def predict(name: str) -> Prediction:
    return RUNS[name].predict()


def error_of(name: str) -> float:
    return abs(predict(name).utilization / RUNS[name].published - 1)


def check(name: str) -> None:
    assert error_of(name) <= WORST
    assert predict(name).fits


@pytest.mark.parametrize("name", QUICK)
def test_a_run_is_as_published(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_large_run_is_as_published(name: str) -> None:
    check(name)


def test_the_median_error_of_small_runs_is_within_its_limit() -> None:
    assert median(map(error_of, QUICK)) <= MEDIAN


@pytest.mark.slow
def test_the_median_error_of_all_runs_is_within_its_limit() -> None:
    assert median(map(error_of, RUNS)) <= MEDIAN


def test_the_rows_are_those_of_the_papers() -> None:
    """Devices, the share of the peak in per cent, and sequences a step."""
    assert Counter(run.source for run in RUNS.values()) == {NARAYANAN: 10, LLAMA3: 3}
    told = [(run.devices, round(100 * run.published), run.batch) for run in RUNS.values()]
    assert told == [
        (32, 44, 512), (64, 44, 512), (128, 46, 512), (256, 43, 1024), (512, 44, 1536),
        (1024, 45, 1792), (1536, 47, 2304), (1920, 50, 2160), (2520, 52, 2520), (3072, 52, 3072),
        (8192, 43, 2048), (16384, 41, 2048), (16384, 38, 128),
    ]  # fmt: skip
    assert {run.hardware for run in RUNS.values() if run.source == NARAYANAN} == {"a100-80gb"}
    assert {run.hardware for run in RUNS.values() if run.source == LLAMA3} == {"h100-sxm"}


def test_the_table_has_a_row_for_each_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["published", "gpt-1.7B"])
    assert published.main() == 0
    header, row, verdict = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["run", "devices", "predicted", "published"]
    assert row.split()[:2] == ["gpt-1.7B", "32"]
    assert verdict.startswith("median error ")


def test_the_benchmark_fails_where_predictions_are_off() -> None:
    assert judge([1.0, 1.05, 0.81]) == 0
    assert judge([1.0, 1.05, 0.79]) == 1
    assert judge([0.89, 1.11, 1.0]) == 1
    assert " no " in format_row(RUNS["gpt-1.7B"], Prediction(1.0, 0.4, 81, 80), 1.0)


def test_a_run_that_needs_more_than_there_is_does_not_fit() -> None:
    run: Run = RUNS["gpt-7.5B"]
    assert predict(run.name).capacity == 80_000_000_000
    assert not Prediction(1.0, 0.4, 80_000_000_001, 80_000_000_000).fits
