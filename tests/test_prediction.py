"""The benchmark of predictions says which part it has, and fails where predictions are off."""

from __future__ import annotations

import sys

import pytest

from benchmarks import prediction
from benchmarks.prediction_cases import MODELS, STRATEGIES, make_case
from benchmarks.prediction_memory import print_sizes


def test_the_median_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_sizes("torch", {"a": (105, 100), "b": (100, 100), "c": (300, 100)}) == 0
    assert print_sizes("torch", {"a": (120, 100), "b": (100, 100), "c": (300, 100)}) == 1
    assert "median error 20.0 %, limit 10 %" in capsys.readouterr().out


def test_parts_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["prediction"])
    assert prediction.main() == 2
    assert "parts: memory" in capsys.readouterr().out


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MODELS)
def test_every_case_can_be_planned(name: str, strategy: str) -> None:
    import mithril as ml

    case = make_case(name, strategy, 2)
    plan = case.compile(ml.NumpyBackend(ml.Mesh(**case.mesh))).plan
    memory = plan.memory()
    assert len(memory.by_device()) == plan.mesh.size
    assert memory.peak > memory.rows[0].parts["parameters"] > 0
