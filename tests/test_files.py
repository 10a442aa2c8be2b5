"""Files that are written whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from mithril.files import replace_file


def test_a_reader_finds_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")

    def write(path: Path) -> None:
        path.write_text("new")
        assert file.read_text() == "old"

    replace_file(file, write)
    assert file.read_text() == "new"
    beside = tmp_path / "b.txt"
    beside.touch()
    assert file.stat().st_mode == beside.stat().st_mode
    beside.unlink()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("is_contended", [False, True])
def test_what_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path, is_contended: bool) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")

    def write(path: Path) -> None:
        path.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        replace_file(file, write, is_contended=is_contended)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_one_that_others_write_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"

    def write(path: Path) -> None:
        path.write_text("first")
        replace_file(file, lambda other: other.write_text("second"), is_contended=True)
        assert file.read_text() == "second"

    replace_file(file, write, is_contended=True)
    assert file.read_text() == "first"
    assert list(tmp_path.iterdir()) == [file]
