"""Plugins that do odd things as they are loaded, and what commands make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import mithril as ml
import pytest
from mithril.cli import backends, faults
from mithril.engine.declared import check_declared
from mithril.engine.numpy_engine import NumpyEngine
from mithril.errors import BackendError
from mithril.plugins.discover import Status, find
from mithril.plugins.extensions import find_plugin, list_plugins

from tests.plugin_helpers import forget
from tests.plugin_packages import mithril, write_plugin

NOISE = {
    "bytes": r"import os; os.write(1, b'\xff\xfe\n')",
    "stream": "import io, sys; sys.stdout = io.StringIO()",
    "last": "import atexit; atexit.register(print, 'bye')",
}
PANIC = "class PanicException(BaseException): pass\nraise PanicException('no card')"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


def test_what_plugins_write_does_not_disturb_the_list(tmp_path: Path) -> None:
    for name, source in NOISE.items():
        write_plugin(tmp_path, name, source, requires=["numpy>=2"])
    done = mithril("backends", "list", "--json", path=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = {row["name"]: row["status"] for row in json.loads(done.stdout)["backends"]}
    assert found["numpy"] == "ready"
    assert {found[name] for name in NOISE} == {"broken"}  # they offer no backend


def test_one_that_ends_the_process_in_peace(tmp_path: Path) -> None:
    write_plugin(tmp_path, "gone", "import os; os._exit(0)", requires=["numpy>=2"])
    done = mithril("backends", "list", path=tmp_path)
    assert done.stderr == (
        "a plugin ends the process that loads it, with 0; shown is what packages declare\n"
    )
    assert "gone" in done.stdout


@pytest.mark.parametrize("group", ["mithril.backends", "mithril.plugins"])
def test_one_that_panics_is_broken(group: str, folder: Path) -> None:
    write_plugin(folder, "rust", PANIC, group=group)
    entry = find("rust") if group == "mithril.backends" else find_plugin("rust")
    assert entry is not None
    assert (entry.status, entry.fact) == (Status.broken, "PanicException: no card")
    assert ml.NumpyBackend().name == "numpy"
    assert len(list_plugins()) == (group == "mithril.plugins")


def test_control_c_is_no_fault_of_a_plugin(folder: Path) -> None:
    write_plugin(folder, "stopped", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        find("stopped")


def test_a_module_that_is_no_name(folder: Path) -> None:
    write_plugin(folder, "val", "")
    points = next(folder.glob("*.dist-info")) / "entry_points.txt"
    points.write_text("[mithril.backends]\nval = mithril val:x y\n", encoding="utf-8")
    entry = find("val")
    assert entry is not None
    assert entry.status is Status.broken
    assert faults.name_module(entry) == "mithril val"
    assert "package" in "\n".join(backends._description(entry))


def test_types_of_options_are_shown_as_they_are_written() -> None:
    Options = dataclass(  # noqa: N806
        type("Options", (), {"__annotations__": {"a": int | None, "b": list[str], "c": int}})
    )
    assert [backends._describe(option)[1] for option in fields(Options)] == [
        "int | None", "list[str]", "int",
    ]  # fmt: skip


def test_an_engine_whose_facts_raise() -> None:
    class Silent(NumpyEngine):
        @property
        def facts(self) -> dict[str, str]:
            raise OSError("no driver")

    said = "engine of backend 'numpy' cannot say facts; OSError: no driver; mend its property facts"
    with pytest.raises(BackendError, match=said):
        faults.read_facts(Silent(ml.Mesh()))


def test_devices_are_texts() -> None:
    class Numbered(NumpyEngine):
        @property
        def devices(self) -> tuple[int, ...]:  # type: ignore[override]
            return (0,)

    said = "engine of backend 'numpy' names device 0, which is an int; give a text, such as 'npu:0'"
    with pytest.raises(BackendError, match=said):
        check_declared(Numbered(ml.Mesh()), "numpy", ml.Mesh())
