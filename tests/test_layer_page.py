"""`docs/layers.md` is what `tools/list_layers.py` writes, and lists everything."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import mithril as ml
import pytest
from mithril import models
from mithril.runtime.functions import EAGER
from mithril.testing.layer_cases import CASES

from tests.tools import load_tool

ROOT = Path(__file__).parent.parent


TOOL = load_tool("list_layers")
PAGE = (ROOT / "docs" / "layers.md").read_text(encoding="utf-8")
LAYERS = {name: value for name, value in vars(models).items() if TOOL.is_layer(value)}


def test_the_page_is_up_to_date() -> None:
    assert TOOL.write_page() == PAGE, "run python tools/list_layers.py"


def test_a_page_that_is_not_up_to_date_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "layers.md"
    monkeypatch.setattr(TOOL, "PAGE", page)
    assert TOOL.main(["--check"]) == 1
    assert "layers.md is not up to date; run python tools/list_layers.py" in capsys.readouterr().out
    assert TOOL.main([]) == 0
    assert TOOL.main(["--check"]) == 0
    page.write_text(page.read_text(encoding="utf-8") + "more", encoding="utf-8")
    assert TOOL.main(["--check"]) == 1


def test_every_layer_and_function_is_listed() -> None:
    assert len(LAYERS) > 60
    assert {name for name in LAYERS if f"| `{name}(" not in PAGE} == set()
    assert {name for name in EAGER if f"| `{name}(" not in PAGE} == set()


def test_the_page_names_the_parameters_of_every_layer() -> None:
    rows = {line.partition("(")[0][3:]: line for line in PAGE.splitlines() if line[:3] == "| `"}
    listed = {name: re.findall(r"`([\w.]+)`", rows[name].rsplit(" | ", 1)[1]) for name in LAYERS}
    for case in CASES:
        name = type(case.layer).__name__
        own = {re.sub(r"layer_\d+", "layer_N", parameter) for parameter in case.layer.parameters}
        assert name == "Repeat" or own <= {*listed[name]}, case
    assert listed["Linear"] == ["weight", "bias"]
    assert {*listed["MultiHeadAttention"]} >= {"q.weight", "o.bias", "q_norm.weight"}
    assert len(listed["LSTM"]) == len(listed["GRU"]) == 8
    assert "those of the block" in rows["Repeat"]


def test_every_layer_explains_its_inputs_options_and_output() -> None:
    for name in LAYERS:
        check_texts(name)


def check_texts(name: str) -> None:
    layer = LAYERS[name]
    text, definition = inspect.getdoc(layer) or "", layer.definition
    explained = {entry for entry, _ in TOOL.entries(TOOL.section(text, "Args"))}
    ports = set() if layer in (ml.MoE, ml.Repeat) else {*definition.inputs, *definition.optional}
    assert {*ports, *(option.name for option in definition.options)} <= explained
    assert TOOL.section(text, "Returns").strip()
    assert f">>> {name}(" in text
