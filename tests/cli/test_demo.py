"""`mithril demo`, run as a user runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mithril.cli.gpt import Sizes, help_text
from mithril.cli.mesh import read_mesh
from mithril.errors import OptionError

from tests.plugin_packages import mithril

STEPS = ("--steps", "12")


@pytest.fixture(scope="module")
def output() -> str:
    done = mithril("demo", *STEPS, path=Path())
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_shows_every_collective_with_its_reason(output: str) -> None:
    rows = re.findall(
        r"^  (all_\w+) over ([\w ]+): (\S+).*, \d+ bytes, .* -> .* for \S+", output, re.M
    )
    assert len(rows) == output.count("  all_reduce over")
    forward = [name for kind, axes, name in rows if axes == "tensor" and "gradient" not in name]
    blocks = range(Sizes().layers)
    assert forward == [
        f"gpt.block{i}.{part}.einsum" for i in blocks for part in ("attn.o", "mlp.down")
    ]
    assert not re.search(r"\.py:\d", output), "what calls a command is not the user"
    assert re.search(r"bytes per device by mesh axis: tensor: \d+, data: \d+", output)


def test_the_loss_falls_and_text_is_written_before_and_after(output: str) -> None:
    first, last = re.findall(r"loss (\d\.\d+) -> (\d\.\d+)", output)[0]
    assert float(last) < float(first) - 1
    assert "--- text written before training\nThe " in output
    assert "--- text written after training\nThe " in output
    assert "\x1b" not in output, "plain where it is no terminal"


def test_it_ends_with_the_proof(output: str) -> None:
    proof = re.findall(r"step (\d)  mesh (\S+)  one device (\S+)", output)
    assert [step for step, _, _ in proof] == ["1", "2", "3"]
    assert "equal within" in output.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=4", "data=3", "tensor=2", "data=1"])
def test_other_meshes(mesh: str) -> None:
    done = mithril("demo", "--mesh", mesh, "--steps", "1", path=Path())
    assert done.returncode == 0, done.stderr
    assert "equal within" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mesh", ""], "OptionError: --mesh is empty; write --mesh data=2,tensor=2, or data=1"),
        (["--mesh", "data=x"], "OptionError: --mesh part 'data=x' is not an axis and its size"),
        (
            ["--mesh", "model=2"],
            "OptionError: --mesh axis 'model' is none of the demo's; axes: 'data', 'tensor'",
        ),
        (["--mesh", "data=2,data=2"], "OptionError: --mesh names axis 'data' twice"),
        (["--backend", "nunpy"], "BackendError: backend 'nunpy' does not exist"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    done = mithril("demo", *arguments, "--steps", "1", path=Path())
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_mesh_is_read() -> None:
    assert read_mesh("data=2,tensor=4") == {"data": 2, "tensor": 4}
    assert read_mesh("rows=3") == {"rows": 3}
    with pytest.raises(OptionError, match="write --mesh data=2,tensor=2"):
        read_mesh("data")
    with pytest.raises(OptionError, match="part '=2' is not an axis and its size"):
        read_mesh("=2")


def test_text_is_english_and_its_ids_are_those_of_the_alphabet() -> None:
    text = help_text()
    assert len(text.ids) > 100_000
    assert text.ids.max() == len(text.alphabet) - 1
    assert [text.alphabet[i] for i in text.encode("The")] == list("The")
    assert "statement" in "".join(text.alphabet[i] for i in text.ids[:20_000])
