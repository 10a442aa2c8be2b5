"""`mithril diff`: what one plan does otherwise than another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mithril as ml
import pytest
from mithril import ops
from mithril.cli.app import app
from mithril.plan import Plan
from mithril.report.difference import compare
from typer.testing import CliRunner

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


def test_plans_that_lie_alike_and_compute_something_else(script: Path) -> None:
    before = write_plan(script, "model")
    text = script.read_text()
    script.write_text(
        text.replace('model |= ml.Relu(name="relu")', 'model |= ml.Tanh(name="relu")')
    )
    found = run("diff", before, write_plan(script, "model", MESH, "--forward"))
    assert "plans do the same" not in found
    after = write_plan(script, "model", "tensor=2,data=2")
    found = run("diff", before, after)
    assert "  - relu, forward at relu\n" in found
    assert "  + tanh, forward at relu\n" in found
    assert "mesh: Mesh(data=2, tensor=2) -> Mesh(tensor=2, data=2)" in found
    found = json.loads(run("diff", before, after, "--json"))
    assert {"op": "relu, forward at relu", "count": 1} in found["ops"]["gone"]
    assert found["meshes"] == ["Mesh(data=2, tensor=2)", "Mesh(tensor=2, data=2)"]


def plan_of(*layers: ml.Layer, mesh: ml.Mesh | None = None, **options: Any) -> Plan:
    model = ml.Model()
    for layer in layers:
        model += layer
    backend = ml.NumpyBackend(mesh or ml.Mesh(data=2))
    return ml.compile(model, backend, shapes={"input": (8, 8)}, **options).plan


def test_attributes_that_differ() -> None:
    low, high = (plan_of(ml.Dropout(rate, name="drop")) for rate in (0.1, 0.9))
    assert compare(low, low).is_empty
    found = compare(low, high)
    assert not found.is_empty
    assert any("at drop" in op for op, _ in found.ops_new)


def test_operands_that_differ() -> None:
    @ml.layer
    def Less(input):  # noqa: N802
        return ops.tanh(input) - input

    @ml.layer
    def More(input):  # noqa: N802
        return input - ops.tanh(input)

    found = compare(plan_of(Less(name="x")), plan_of(More(name="x")))
    assert found.rewired == ("main",)
    assert "stages of the same ops, in another order or on other operands:\n  main" in str(found)


def test_stages_and_schedules_that_differ() -> None:
    def staged(schedule: str) -> Plan:
        stages = ml.Pipeline([ml.Linear(8), ml.Linear(8)], microbatch_size=2)
        return plan_of(stages, mesh=ml.Mesh(pipeline=2), pipeline_schedule=schedule)

    def placed(device: int) -> Plan:
        return plan_of(ml.Linear(8, device_id=device))

    found = str(compare(staged("gpipe"), staged("1f1b")))
    assert "schedule: gpipe of 4 micro-batches -> 1f1b of 4 micro-batches" in found
    found = str(compare(placed(0), placed(1)))
    assert "stages that run otherwise: 2\n  device 0" in found
    assert "1 x on 1" in found


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


def test_a_script_brings_the_ops_that_plans_name(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import mithril as ml\n"
        "print('loaded')\n"
        "op = ml.define_op('of_a_script', shapes=lambda x: x, rule='elementwise',\n"
        "    kernels={'numpy': lambda x: x}, gradient=lambda i, o, g: g)\n"
        "@ml.layer\n"
        "def Own(input):\n"
        "    return op(input)\n"
        "model = ml.Model()\n"
        "model += Own()\n"
    )
    done = CliRunner().invoke(
        app, ["plan", f"{script}:model", "--mesh", "data=2", "--shapes", "input=8x8", "--json"]
    )
    assert done.stderr == "loaded\n"
    plan = tmp_path / "plan.json"
    plan.write_text(done.stdout.replace('"of_a_script"', '"of_another"'))
    assert run("diff", plan, plan) == (
        f"OptionError: file '{plan}' cannot be read; op 'of_another' is not known here; import it "
        f"first: with --script SCRIPT, or install its plugin"
    )
    script.write_text(script.read_text().replace("of_a_script", "of_another"))
    assert "plans do the same" in run("diff", plan, plan, "--script", script)
    assert "script 'none.py' is no file" in run("diff", plan, plan, "--script", "none.py")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    found = run("diff", tmp_path / "none.json", tmp_path / "none.json")
    assert found.startswith("OptionError: file '")
    assert "cannot be read; " in found
    assert found.endswith("give one that `mithril plan --json` printed")
