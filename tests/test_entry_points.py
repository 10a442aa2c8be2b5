"""Entry points of plugins: read once, and again when something is installed or removed."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path

import pytest
from mithril.plugins import discover

GROUP = "mithril.tests"


def install(folder: Path, name: str) -> Path:
    made = folder / f"{name}-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}:plugin\n")
    _age(folder)
    return made


def _age(folder: Path) -> None:
    """Have a folder be changed a second later than before: clocks of file systems may be coarse."""
    now = folder.stat().st_mtime_ns + 10**9
    os.utime(folder, ns=(now, now))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Groups that were read."""
    found: list[str] = []

    def read(*, group: str) -> EntryPoints:
        found.append(group)
        return entry_points(group=group)

    monkeypatch.setattr(discover, "entry_points", read)
    return found


def test_what_is_installed_or_removed_is_seen_and_nothing_else_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert discover.list_points(GROUP).names == set()
    install(tmp_path, "first")
    assert discover.list_points(GROUP).names == {"first"}
    assert discover.list_points(GROUP).names == {"first"}
    assert len(reads) == 2
    second = install(tmp_path, "second")
    assert discover.list_points(GROUP).names == {"first", "second"}
    shutil.rmtree(second)
    _age(tmp_path)
    assert discover.list_points(GROUP).names == {"first"}
    assert reads == [GROUP] * 4


def test_another_path_is_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    install(tmp_path, "third")
    assert discover.list_points(GROUP).names == set()
    monkeypatch.syspath_prepend(tmp_path)
    assert discover.list_points(GROUP).names == {"third"}
