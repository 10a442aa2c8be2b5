"""Buckets of both sizes are placed where they differ, and once where they are the same."""

from __future__ import annotations

from importlib import import_module

import mithril as ml
import pytest
from mithril.ir.rewrite import is_alike
from mithril.plan import Plan
from mithril.runtime.planned import plan_backend

pipeline = import_module("mithril.compiler.pipeline")


@pytest.mark.parametrize(("layers", "count"), [(3, 1), (9, 2)])
def test_programs_are_placed_once_if_their_buckets_are_the_same(
    layers: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[Plan] = []
    place = pipeline.place_in_plan

    def note(plan: Plan, *given: object) -> Plan:
        placed.append(plan)
        found: Plan = place(plan, *given)
        return found

    monkeypatch.setattr(pipeline, "place_in_plan", note)
    model = ml.Model(name="mlp")
    model |= ml.Linear(1024, name="layer0")(input="input", output="out0")
    for number in range(1, layers):
        model += ml.Linear(1024, name=f"layer{number}")(output=f"out{number}")
    backend = plan_backend(ml.Mesh(data=8), "h100-sxm")
    plan = ml.compile(model, backend, zero=3, shapes={"input": (4096, 1024)}).plan
    assert sum(row.kind == "all_gather" for row in plan.collectives()) >= 2
    first, *others = [plan.stages[0].program.graph for plan in placed]
    assert len(placed) == count
    assert not any(is_alike(first, other) for other in others)
