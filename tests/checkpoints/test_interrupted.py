"""A save that is interrupted, at whatever step, leaves the checkpoint that was there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mithril as ml
import pytest
from mithril import P
from mithril.checkpoints import files, loading, saving

STEPS = ("fsync", "replace")
"""What a save asks of the system where it may be interrupted."""


def tree_of(value: float) -> dict[str, Any]:
    backend = ml.NumpyBackend(ml.Mesh(a=2))
    w = backend.full((6, 4), value, dtype="float32", sharding=P("a"))
    return {"w": w, "v": backend.full((4,), value, dtype="float32"), "step": int(value)}


def check_is(value: float, path: Path) -> None:
    found = ml.load(path)
    assert found["step"] == int(value)
    assert set(found["w"].flat) == set(found["v"].flat) == {value}


class InterruptedSaveError(Exception):
    """Stands for the end of the process: nothing of Mithril catches it."""


def interrupt(
    patch: pytest.MonkeyPatch, name: str, number: int, error: type[Exception]
) -> list[int]:
    """Let the `number`-th call of a function of `os` raise; return a list that counts them."""
    function, calls = getattr(os, name), []

    def fail(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise error(28, "No space left on device")
        return function(*given)

    patch.setattr(os, name, fail)
    return calls


def count_calls(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        calls = interrupt(patch, name, 0, InterruptedSaveError)
        ml.save(path, tree_of(1))  # after a first one, which also makes the directory
    return len(calls)


def test_unfinished_files_of_another_process_are_no_foreign_files(tmp_path: Path) -> None:
    unfinished = tmp_path / ".tmpSKZz04"  # as safetensors calls them while it writes
    unfinished.touch()
    ml.save(tmp_path, tree_of(1))
    check_is(1, tmp_path)
    assert not unfinished.exists()


@pytest.mark.parametrize("error", [InterruptedSaveError, OSError])
@pytest.mark.parametrize("name", STEPS)
def test_the_old_checkpoint_stays_whole_until_the_new_one_is(
    name: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 40)  # several files
    path = tmp_path / "checkpoint"
    ml.save(path, tree_of(0))
    calls = count_calls(name, path, monkeypatch)
    assert calls >= 4
    for number in range(1, calls + 1):
        with monkeypatch.context() as patch:
            interrupt(patch, name, number, error)
            with pytest.raises(
                InterruptedSaveError if error is InterruptedSaveError else ml.CheckpointError
            ):
                ml.save(path, tree_of(number + 1))
        last = name == "fsync" and number == calls  # the index has its name, and is not synced yet
        check_is(number + 1 if last else 1, path)
    ml.save(path, tree_of(100))
    check_is(100, path)
    named = {file.name for file in path.iterdir()}
    ml.save(path, tree_of(101))
    assert len(named) == len(list(path.iterdir())) == 4, "leftovers of interrupted saves are gone"


KILLED = """
import os, sys
from pathlib import Path
import mithril as ml
from tests.checkpoints.test_interrupted import tree_of
path, name, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
function, calls = getattr(os, name), []
def die(*given):
    calls.append(1)
    if len(calls) == number:
        os.kill(os.getpid(), 9)
    return function(*given)
setattr(os, name, die)
ml.save(path, tree_of(2))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "value"), [("replace", 1, 1), ("replace", 2, 1), ("fsync", 5, 2)]
)
def test_a_process_that_is_killed_while_it_saves(
    name: str, number: int, value: float, tmp_path: Path
) -> None:
    ml.save(tmp_path, tree_of(1))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), name, str(number)],
        cwd=Path(__file__).parent.parent.parent, check=False,
    )  # fmt: skip
    assert done.returncode == (-9 if number <= 4 else done.returncode)
    check_is(value, tmp_path)


def test_a_first_save_that_is_interrupted_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, "replace", 2, InterruptedSaveError)
        with pytest.raises(InterruptedSaveError):
            ml.save(tmp_path, tree_of(1))
    with pytest.raises(ml.CheckpointError, match="nothing was saved there, or the save was interr"):
        ml.load(tmp_path)
    ml.save(tmp_path, tree_of(2))
    check_is(2, tmp_path)


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def fail(*given: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(files, "save_file", fail)
    with pytest.raises(
        ml.CheckpointError, match=r"00000.safetensors' cannot be written; .*No space"
    ):
        ml.save(tmp_path, tree_of(1))


def test_index_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b))[1])
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), fsync(handle))[1])
    ml.save(tmp_path, tree_of(1))
    order = [re.sub("-[0-9a-f]{8}-", "-mark-", name) for name in order]
    part, prepared = "000001-mark-00000-00000.safetensors", "000001-mark-00000.json"
    assert order == ["sync", part, "sync", "sync", prepared, "sync", "index.json", "sync"]


def test_a_load_begins_again_where_a_save_is_completed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ml.save(tmp_path, tree_of(1))
    read, values = loading.read_index, iter([2, 3])

    def read_and_save(directory: Path) -> Any:
        index = read(directory)
        for value in values:
            ml.save(tmp_path, tree_of(value))
            break
        return index

    monkeypatch.setattr(loading, "read_index", read_and_save)
    check_is(3, tmp_path)


def test_of_two_jobs_that_save_into_one_path_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ml.save(tmp_path, tree_of(1))
    prepare = saving.prepare_index

    def save_meanwhile(*given: Any) -> None:
        monkeypatch.setattr(saving, "prepare_index", prepare)
        prepare(*given)
        ml.save(tmp_path, tree_of(2))

    monkeypatch.setattr(saving, "prepare_index", save_meanwhile)
    with pytest.raises(
        ml.CheckpointError,
        match=r"was saved by another job while this one saved there; that one is kept; give each",
    ):
        ml.save(tmp_path, tree_of(3))
    check_is(2, tmp_path)
    ml.save(tmp_path, tree_of(4))
    check_is(4, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
