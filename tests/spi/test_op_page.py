"""`docs/plugins/ops.md` is what `tools/list_ops.py` writes, and lists everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mithril.engine.standard.namespace import FACTORISATIONS, ArrayNamespace
from mithril.ir import Op
from mithril.spi import ops

from tests.tools import load_tool

ROOT = Path(__file__).parent.parent.parent


TOOL = load_tool("list_ops")
PAGE = (ROOT / "docs" / "plugins" / "ops.md").read_text(encoding="utf-8")
OFFERED = [getattr(ops, name) for name in ops.__all__]
CLASSES = [x for x in OFFERED if isinstance(x, type) and issubclass(x, Op) and x.name]


def row_of(name: str) -> list[str]:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
    return [cell.strip() for cell in row.strip("|").split(" | ")]


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    assert TOOL.write_page() == PAGE, "run python tools/list_ops.py"


def test_every_op_has_a_row() -> None:
    assert len(CLASSES) > 130
    for op in CLASSES:
        name, text, *_ = row_of(op.name)
        assert f"`{op.__name__}`" in name
        assert len(text) > 2


def test_a_row_says_what_an_op_is_given_gives_and_expands_into() -> None:
    _, _, operands, attributes, dtypes, expansion, layers = row_of("softmax")
    assert (operands, attributes, dtypes) == ("`x`", "`axis: int`", "floats")
    assert expansion == "`max`, `stop_gradient`, `subtract`, `exp`, `sum`, `divide`"
    assert "Softmax" in layers
    assert row_of("where")[2] == "`condition, x, y`"
    assert row_of("equal")[4] == "booleans, integers → bool, floats → bool"
    assert row_of("argmax")[4].endswith("floats → int32")
    assert "†" in row_of("qr")[0]
    assert row_of("add")[5] == ""


@pytest.mark.slow
def test_a_page_that_is_not_up_to_date_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TOOL, "PAGE", tmp_path / "ops.md")
    assert TOOL.main(["--check"]) == 1
    assert "ops.md is not up to date; run python tools/list_ops.py" in capsys.readouterr().out
    assert TOOL.main([]) == 0
    assert TOOL.main(["--check"]) == 0


def test_the_page_of_libraries_lists_the_functions_that_are_asked_for() -> None:
    page = (ROOT / "docs" / "plugins" / "libraries.md").read_text(encoding="utf-8")
    listed = page.partition("as the standard has them")[2].partition("\n\n")[2].partition("\n\n")[0]
    assert re.findall(r"`(\w+)`", listed) == list(ArrayNamespace.__annotations__)
    said = page.partition("these are called: ")[2].partition("; `triangular_solve`")[0]
    assert set(re.findall(r"`(\w+)\(", said)) == set(FACTORISATIONS.values())
