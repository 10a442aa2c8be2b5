"""Predicted memory against what XLA says of the programs it compiles."""

from __future__ import annotations

import mithril as ml
import pytest

from benchmarks.prediction_cases import make_case
from benchmarks.prediction_memory import measure_jax


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("MLP", "at rest"),
        *(pytest.param(m, "one device", marks=pytest.mark.slow) for m in ("CNN", "GPT")),
    ],
)
def test_predictions_are_near_what_xla_says(model: str, strategy: str) -> None:
    predicted, measured = measure_jax(make_case(model, strategy, 4))
    assert predicted == pytest.approx(measured, rel=0.15)


def test_execution_says_that_xla_lays_memory_out() -> None:
    execution = ml.JaxBackend().engine.execution
    assert execution.lays_out
    assert execution.fuses
