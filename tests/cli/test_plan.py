"""`mithril plan`: what a model costs on devices that are not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mithril.cli.app import app
from mithril.cost import Hardware
from mithril.errors import OptionError
from mithril.plan.serialize import plan_from_json
from typer.testing import CliRunner

from tests.cli.models_to_plan import SHAPES, run, script

__all__ = ["script"]
MESH = "data=4,tensor=2"


def figures(script: Path, name: str, *more: str) -> dict:
    found = run("plan", f"{script}:{name}", "--mesh", MESH, "--shapes", SHAPES, "--json", *more)
    return json.loads(found)


def test_what_a_split_model_costs(script: Path) -> None:
    found = run(
        "plan", f"{script}:split", "--mesh", MESH, "--shapes", SHAPES, "--hardware", "h100-sxm"
    ).splitlines()
    assert found[0] == "Mesh(data=4, tensor=2): 8 devices of profile 'h100-sxm'"
    assert found[1].startswith("  memory     fits: ")
    assert " of 74.5 GiB, at " in found[1]
    assert any(line.startswith("  step ") and line.endswith("% of peak flops") for line in found)
    text = "\n".join(found)
    assert "all_reduce over tensor" in text
    assert "down.einsum from down (train.py:13)" in text


def test_json_has_figures_and_the_plan(script: Path) -> None:
    found = figures(script, "split", "--hardware", "a100-80gb")
    plan = plan_from_json(json.dumps(found))
    got = found["figures"]
    assert got["bytes_by_axis"] == plan.bytes_by_axis()
    assert (got["devices"], got["profile"]) == (8, "a100-80gb")
    assert got["memory_capacity"] == Hardware.load("a100-80gb").memory_bytes
    assert got["samples_per_second"] == pytest.approx(64 / got["step_seconds"])
    assert got["tokens_per_second"] is None
    assert got["memory_peak"] == sum(got["memory_by_kind"].values())


def test_the_forward_alone_costs_less(script: Path) -> None:
    both, forward = figures(script, "split"), figures(script, "split", "--forward")
    assert forward["figures"]["step_seconds"] < both["figures"]["step_seconds"]
    moved = [found["figures"]["bytes_by_axis"]["data"] for found in (both, forward)]
    assert moved[1] == 4 < moved[0]  # the loss is a mean over all samples


def test_integers_in_two_dimensions_are_tokens(script: Path) -> None:
    found = json.loads(
        run(
            "plan", f"{script}:words", "--mesh", "data=2", "--shapes", "ids=8x16:int32@data",
            "--hardware", "cpu", "--json",
        )
    )["figures"]  # fmt: skip
    assert found["tokens_per_second"] == pytest.approx(16 * found["samples_per_second"])


def test_a_compiled_model_is_planned_as_it_is(script: Path) -> None:
    text = run("plan", f"{script}:compiled")
    assert text.startswith("Mesh(tensor=2): 2 devices of profile 'simulated'")
    other = run("plan", f"{script}:compiled", "--hardware", "b200")
    assert other.startswith("Mesh(tensor=2): 2 devices of profile 'b200'")


@pytest.mark.slow
def test_no_framework_is_imported(script: Path) -> None:
    code = (
        "import sys; from mithril.cli.app import app\n"
        f"app(['plan', {f'{script}:split'!r}, '--mesh', 'tensor=2', '--shapes', 'x=8x8,t=8x4'],"
        " standalone_mode=False)\n"
        "assert not {'jax', 'torch', 'mlx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["{}:split", "--shapes", "x=99999999999999999999x16"],
            "--shapes part 'x=99999999999999999999x16' has more than 4611686018427387904 elements; "
            "give smaller sizes",
        ),
        (["{}:split"], "needs the sizes of its inputs; give --shapes x=8x16,t=8x16"),
        (["{}:number"], "' is an int; name a model or a compiled model"),
        (
            ["{}:compiled", "--mesh", "tensor=2"],
            "--mesh, --shapes and --gradients/--forward are for models that are not",
        ),
        (["{}:compiled", "--forward"], "--gradients/--forward are for models that are not"),
        (
            ["{}:split", "--hardware", "h10"],
            "OptionError: hardware 'h10' has no profile; there are ",
        ),
        (["{}:nothing"], "has no 'nothing'; name a model that it makes"),
        (["train"], "'train' names no model; write SCRIPT:NAME, such as train.py:model"),
    ],
)
def test_mistakes_are_one_line(script: Path, arguments: list[str], text: str) -> None:
    found = run("plan", *(argument.format(script) for argument in arguments))
    assert text in found
    assert found.count("\n") <= 1


def test_a_page_that_cannot_be_written(script: Path, tmp_path: Path) -> None:
    page = tmp_path / "none" / "plan.html"
    told = CliRunner().invoke(
        app, ["plan", f"{script}:split", "--mesh", MESH, "--shapes", SHAPES, "--html", str(page)]
    )
    assert isinstance(told.exception, OptionError)
    assert str(told.exception).startswith(f"--html '{page}' cannot be written; ")
