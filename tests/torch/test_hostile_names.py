"""Names that would break a text, a file or a program: refused where they are given, or harmless."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.errors import GraphError, MeshError, MithrilError
from mithril.plan.serialize import plan_from_json, plan_to_json

from tests.profiles import quick

NAMES = [
    'a"""\nimport os\n"""', "'''", '"', "'", "a'b", 'a"b', "\\", "a\\", "\\n", "\n", "a\nb", "a\r\nb",
    "\r", "\t", "\0", "a\0b", "\x0c", "\x1b[31mred\x1b[0m", "\x7f", "\x85", "\u2028", "\u2029",
    "\u202eabc", "\u200b", "\ufeff", "\ud800", "a\udc80", "# comment", "a # b", "a; import os", "{a}",
    "{0}", "%s", "{{", "$(id)", "`id`", "import", "None", "def", "lambda", "x²", "²", "ﬁ", "fi", "𝐢𝐟",
    "1a", "a b", " ", "-", "a-b", "../../up", "a/b", "<b>", "[x]", "*", "run", "torch", "v_1", "step",
    "rank", "inputs", "_", "__class__", "数据", "é", "🙂", "x" * 300,
]  # fmt: skip
assert len(set(NAMES)) > 50
X = np.ones((4, 3), np.float32)


Made = tuple[ml.Model, str, ml.TorchBackend, str]


def as_axis(name: str) -> Made:
    return made(mesh=ml.Mesh({name: 2}), axis=name)


def made(
    *, layer: str = "l", input: str = "x", output: str = "y", block: str = "block", axis: str = "data",
    mesh: ml.Mesh | None = None, own: Callable[..., object] = ml.Relu,
) -> Made:  # fmt: skip
    """Return a model, its input's name, its backend, and the axis that splits the input."""
    inner, model = ml.Model(name=block), ml.Model()
    inner |= ml.Linear(4, name=layer)(input="in_1", output="h_1")
    inner |= own()(input="h_1", output="out_1")
    model |= inner(in_1=input, out_1="between")
    model |= ml.Tanh()(input="between", output=output)
    backend = ml.TorchBackend(mesh or ml.Mesh(data=2), executor="lockstep", device="cpu")
    return model, input, backend, axis


def with_parameter(name: str) -> Made:
    @ml.layer(parameters=(name,))
    def Scale(input):  # noqa: N802
        return input * ml.parameter(name, (4,), ml.Constant(1.0))

    return made(own=Scale)


PLACES = {
    "axis": as_axis,
    "layer": lambda name: made(layer=name),
    "input": lambda name: made(input=name),
    "output": lambda name: made(output=name),
    "model": lambda name: made(block=name),
    "parameter": with_parameter,
}


def is_first(name: str, place: str) -> bool:
    """Whether a quick run has this case, too: each place with some names."""
    return (NAMES.index(name) - list(PLACES).index(place)) % 16 == 0


def is_early(name: str) -> bool:
    """Whether a quick run has this name."""
    return is_first(name, "axis")


@quick(is_first)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_is_refused_or_harmless(place: str, name: str, tmp_path: Path) -> None:
    try:
        model, input, backend, axis = PLACES[place](name)
    except MithrilError as error:
        assert isinstance(error, MeshError if place == "axis" else GraphError)
        assert str(error).isprintable()
        str(error).encode()
        return
    if place == "axis":
        assert name.isidentifier()
    shapes = {input: ml.TensorSpec(X.shape, sharding=P(axis))}
    compiled = ml.compile(model, backend, shapes=shapes)
    outputs, slopes = compiled.evaluate(
        compiled.randomize_params(), {input: X}, {compiled.outputs[0]: np.ones((4, 4), "f")}
    )
    assert len(outputs) == 1 and len(slopes) >= 2
    plan = compiled.plan
    assert str(plan_from_json(plan_to_json(plan))) == str(plan)
    assert json.loads(plan_to_json(plan))["plan"]["mesh"]
    for text in (str(plan), compiled.explain(), compiled.summary(), compiled.code(), repr(model)):
        assert all(line.isprintable() for line in text.replace("\n", "").splitlines())
        assert len(text.splitlines()) == text.count("\n") + (not text.endswith("\n"))
        text.encode()
    text = compiled.eject(tmp_path / "step.py").read_text(encoding="utf-8")
    assert (outline(compiled.code()), outline(text)) == plain(place)


def outline(source: str) -> list[str]:
    """Return the statements of a program by their kinds, bodies included: names change none."""
    tree = ast.parse(source)
    return [type(node).__name__ for node in ast.walk(tree) if isinstance(node, ast.stmt)]


@cache
def plain(place: str) -> tuple[list[str], list[str]]:
    """Return what the programs look like where the name is a plain one."""
    model, input, backend, axis = PLACES[place]("plain")
    shapes = {input: ml.TensorSpec(X.shape, sharding=P(axis))}
    compiled = ml.compile(model, backend, shapes=shapes)
    compiled.evaluate(
        compiled.randomize_params(), {input: X}, {compiled.outputs[0]: np.ones((4, 4), "f")}
    )
    with TemporaryDirectory() as folder:
        text = compiled.eject(Path(folder) / "step.py").read_text(encoding="utf-8")
    return outline(compiled.code()), outline(text)


@quick(is_early)
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_name_of_a_file_is_harmless(name: str, tmp_path: Path) -> None:
    model, input, backend, _ = made()
    compiled = ml.compile(model, backend, shapes={input: X.shape})
    file = re.sub(r"[/\0]", "", name)[:100] + ".py"
    try:
        file.encode()
    except UnicodeEncodeError:
        pytest.skip("no file can have it")
    ast.parse(compiled.eject(tmp_path / file, gradients=False).read_text(encoding="utf-8"))


@quick(is_early)
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_keys_of_trees_and_names_of_functions_are_harmless(name: str) -> None:
    def step(tree):
        return {key: mnp.tanh(value) * 2 for key, value in tree.items()}

    step.__name__ = name
    backend = ml.TorchBackend(ml.Mesh(data=2), executor="lockstep", device="cpu")
    function = ml.jit(step)
    x = backend.array(X, sharding=P("data"))
    (made,) = function({name: x}).values()
    np.testing.assert_allclose(made.numpy(), np.tanh(X) * 2, rtol=1e-6)
    assert "\0" not in function.explain({name: x})
    function.explain({name: x}).encode()
