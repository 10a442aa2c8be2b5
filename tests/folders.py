"""Folders that several tests share; pytest removes them after a few sessions, however one ends."""

from __future__ import annotations

from pathlib import Path

import pytest

_base: list[Path] = []


@pytest.fixture(scope="session", autouse=True)
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remember where pytest has the folders of this session."""
    _base[:] = [tmp_path_factory.getbasetemp()]


def session_folder(name: str) -> Path:
    """Return a new folder of this session."""
    number = sum(path.name.startswith(f"{name}-") for path in _base[0].iterdir())
    folder = _base[0] / f"{name}-{number}"
    folder.mkdir()
    return folder
