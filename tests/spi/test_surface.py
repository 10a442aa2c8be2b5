"""The surface of `mithril.spi` is recorded, and changes with `BACKEND_API` alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from mithril.plugins import BACKEND_API

from tests.tools import load_tool

TOOL = load_tool("spi_surface")
NOW = TOOL.describe()
SMALL = [
    "class Engine",
    "Engine.name: str",
    "def Engine.put(self, type: TensorType) -> Handle  # required",
    "def move(parts: Sequence[Any], xp: ModuleType) -> list[Any]",
    "class Port",
    "Port.name: str  # required",
    "Port.bytes: int = …",
]


def test_the_surface_is_what_was_recorded() -> None:
    """A failure says which number has to grow, and for which lines."""
    assert TOOL.find_faults(NOW, BACKEND_API) == []


def test_each_thing_has_one_line() -> None:
    assert len({TOOL._key(line) for line in NOW}) == len(NOW)
    assert not [line for line in NOW if " at 0x" in line]


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (lambda lines: lines, ""),
        (lambda lines: [*lines, "def join(parts: list) -> Any"], "minor"),
        (lambda lines: [*lines, "class Arena", "Arena.size: int  # required"], "minor"),
        (lambda lines: [*lines, "Port.count: int = …"], "minor"),
        (lambda lines: [*lines, "Port.count: int  # required"], "major"),
        (lambda lines: [*lines, "def Engine.get(self) -> Handle  # required"], "major"),
        (lambda lines: [*lines, "def Engine.get(self) -> Handle"], "minor"),
        (lambda lines: [line for line in lines if "Engine.name" not in line], "major"),
        (lambda lines: [line.replace("bytes: int", "bytes: float") for line in lines], "major"),
        (lambda lines: [x.replace("xp: ModuleType", "xp: ModuleType, n: int = 0") for x in lines], "minor"),
        (lambda lines: [x.replace("xp: ModuleType", "xp: ModuleType, n: int") for x in lines], "major"),
        (lambda lines: [x.replace("xp: ModuleType", "xp: ArrayNamespace") for x in lines], "major"),
        (lambda lines: [x.replace("type: TensorType", "type: TensorType, n: int = 0") for x in lines], "major"),
        (lambda lines: [*lines, "deprecated OldEngine"], "minor"),
    ],
)  # fmt: skip
def test_a_change_asks_for_a_step(change, step: str) -> None:
    assert TOOL.judge(SMALL, change(SMALL))[0] == step


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(TOOL, "RECORDS", tmp_path)
    (tmp_path / "2.2.txt").write_text("\n".join(SMALL) + "\n", encoding="utf-8")
    return tmp_path


def test_a_change_without_a_new_number_fails(records: Path) -> None:
    more, less = [*SMALL, "class Arena"], SMALL[:-1]
    assert TOOL.find_faults(SMALL, (2, 2)) == []
    wanted, line = TOOL.find_faults(more, (2, 2))
    assert (wanted, line) == (
        "BACKEND_API has to become (2, 3): mithril.spi has changed:",
        "+ class Arena",
    )
    assert "is not recorded" in TOOL.find_faults(more, (2, 3))[0]
    for version in ((2, 2), (2, 3)):  # a minor number is not enough for what is gone
        wanted, line = TOOL.find_faults(less, version)
        assert wanted == "BACKEND_API has to become (3, 0): mithril.spi has changed:"
        assert line == "- Port.bytes: int = …"
    assert "is not recorded" in TOOL.find_faults(less, (3, 0))[0]


def test_a_recorded_version_is_not_recorded_again(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TOOL, "describe", lambda: [*SMALL, "class Arena"])
    monkeypatch.setattr(TOOL, "BACKEND_API", (2, 2))
    assert TOOL.main([]) == 1
    assert "has to become (2, 3)" in capsys.readouterr().out
    assert TOOL.read((2, 2)) == SMALL
    monkeypatch.setattr(TOOL, "BACKEND_API", (2, 3))
    assert TOOL.main(["--check"]) == 1
    assert TOOL.main([]) == 0
    assert TOOL.main(["--check"]) == 0
    assert TOOL.list_versions() == [(2, 2), (2, 3)]
