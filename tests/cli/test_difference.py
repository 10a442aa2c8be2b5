"""`mithril diff`: what one plan does otherwise than another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.models_to_plan import SHAPES, run, script

__all__ = ["script"]
MESH = "data=2,tensor=2"


def write_plan(script: Path, name: str, mesh: str = MESH, *more: str) -> Path:
    path = script.parent / f"{name}-{mesh}{''.join(more)}.json"
    text = run("plan", f"{script}:{name}", "--mesh", mesh, "--shapes", SHAPES, "--json", *more)
    path.write_text(text)
    return path


def test_equal_plans(script: Path) -> None:
    assert run("diff", *[write_plan(script, "split")] * 2) == "plans do the same\n"


def test_what_a_split_changes(script: Path) -> None:
    whole, split = write_plan(script, "model"), write_plan(script, "split")
    text = run("diff", whole, split)
    assert "  up.weight: float32[16, 8] P(None, None) -> float32[16, 8] P('tensor', None)" in text
    assert "  + all_reduce over tensor, " in text
    assert "(train.py:13) for down.add" in text
    assert "  tensor: 0 B -> " in text
    assert "predicted with profile 'simulated'" in text
    back = run("diff", split, whole)
    assert "  - all_reduce over tensor, " in back


def test_json(script: Path) -> None:
    whole, split = write_plan(script, "model"), write_plan(script, "split")
    found = json.loads(run("diff", whole, split, "--json"))
    assert {moved["name"] for moved in found["tensors"]} >= {"up.weight", "down.weight"}
    assert {row["kind"] for row in found["new"]} == {"all_reduce"}
    assert found["memory"]["before"] > found["memory"]["after"] > 0
    assert found["seconds"]["before"] > 0


def test_times_of_other_profiles_and_of_none(script: Path) -> None:
    a, b = (write_plan(script, "split", MESH, "--hardware", h) for h in ("b200", "mi300x"))
    assert "predicted with profiles 'b200' and 'mi300x'" in run("diff", a, b)
    content = json.loads(a.read_text())
    content["plan"]["pricing"]["profile"] = "my-cluster"
    a.write_text(json.dumps(content))
    assert "step: no time is predicted, since no profile here describes" in run("diff", a, b)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{}", "holds no plan; JSON text is not a plan of schema 1; write it anew"),
        ('{"schema": 2, "plan": {}}', "holds no plan; JSON text is not a plan of schema 1"),
        ("\xff", "holds no plan; "),
    ],
)
def test_files_that_hold_no_plan(content: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    assert text in run("diff", path, path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    found = run("diff", tmp_path / "none.json", tmp_path / "none.json")
    assert found.startswith("OptionError: file '")
    assert "cannot be read; " in found
    assert found.endswith("give one that `mithril plan --json` printed")
