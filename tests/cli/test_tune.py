"""`mithril tune` and `mithril diff` of strategies."""

from __future__ import annotations

import json
from pathlib import Path

import mithril as ml
import pytest

from tests.cli.models_to_plan import run, script

__all__ = ["script"]
SHAPES = "x=64x8,t=64x4"


@pytest.mark.slow
def test_a_strategy_for_devices_that_are_not_here(script: Path, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    given = ("--devices", 8, "--hardware", "h100-sxm", "--shapes", SHAPES)
    text = run("tune", f"{script}:model", *given, "--out", path)
    assert text.startswith("strategy for Mesh(")
    assert "with profile 'h100-sxm'" in text
    found = ml.Strategy.load(path)
    assert found.make_mesh().size == 8
    printed = json.loads(run("tune", f"{script}:model", *given, "--json"))
    assert printed["mesh"] == dict(found.mesh)


@pytest.mark.slow
def test_a_train_step_of_some_dtype(script: Path) -> None:
    given = ("--devices", 4, "--shapes", SHAPES, "--space", "data", "--optimizer", "adamw")
    text = run("tune", f"{script}:model", *given, "--dtype", "bfloat16", "--budget", 0.01)
    assert "strategy for Mesh(data=4)" in text


@pytest.mark.slow
def test_what_two_strategies_say_otherwise(script: Path, tmp_path: Path) -> None:
    given = ("--hardware", "h100-sxm", "--shapes", SHAPES, "--space", "data", "--devices")
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, count in zip(paths, (2, 4), strict=True):
        run("tune", f"{script}:model", *given, count, "--out", path)
    text = run("diff", *paths)
    assert "  mesh: {'data': 2} -> {'data': 4}" in text
    assert run("diff", paths[0], paths[0]) == "strategies say the same\n"
    rows = json.loads(run("diff", *paths, "--json"))["strategy"]
    assert {"what": "mesh", "before": "{'data': 2}", "after": "{'data': 4}"} in rows


def test_bad_input(script: Path) -> None:
    given = ("--devices", 4, "--shapes", SHAPES)
    assert "name a model that is not compiled" in run("tune", f"{script}:compiled", *given)
    text = run("tune", f"{script}:model", *given, "--optimizer", "adm")
    assert "--optimizer='adm' does not exist" in text
    assert "tuning_budget_hours=0.0 is no time" in run(
        "tune", f"{script}:model", *given, "--budget", 0
    )
