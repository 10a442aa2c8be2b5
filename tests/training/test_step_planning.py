"""How often the model of a train step is traced, laid out and planned."""

from __future__ import annotations

from typing import Any

import mithril as ml
import pytest
from mithril import P
from mithril.compiler import pipeline
from mithril.runtime import tracer

from tests.training.test_step import RATE, SPLIT, model, shapes


def test_a_model_is_traced_once_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def count(*arguments: Any, **options: Any) -> Any:
        traced.append(arguments)
        return trace(*arguments, **options)

    trace = tracer.trace
    monkeypatch.setattr(tracer, "trace", count)
    ml.train_step(
        model(), ml.NumpyBackend(ml.Mesh(data=2)), ml.optim.sgd(RATE), shapes=shapes(), zero=3
    )
    assert len(traced) == 1


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_model_is_laid_out_and_not_planned_to_know_how_its_parameters_lie(
    stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed with, which ZeRO splits further, is chosen for the model alone."""
    planned = []

    def count(*arguments: Any, **options: Any) -> Any:
        planned.append(arguments)
        return place(*arguments, **options)

    place = pipeline.place_in_plan
    monkeypatch.setattr(pipeline, "place_in_plan", count)
    made = model()
    made.shard(SPLIT)
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    step = ml.train_step(
        made, backend, ml.optim.sgd(RATE), shapes=shapes(P("data")), zero=stage, zero_axis="data"
    )
    assert len(planned) == 1
    assert step.shardings["up.weight"].spec == P(("tensor", "data"), None)
