"""`mithril calibrate` writes what later programs use; `mithril hardware` shows what there is."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from mithril.cli.app import app
from mithril.cost import SIMULATED
from mithril.cost.hardware import Calibration
from mithril.cost.profiles import list_profiles
from mithril.cost.profiles.store import find_path
from mithril.engine import Engine
from mithril.errors import BackendError, OptionError
from mithril.plugins import opening
from typer.testing import CliRunner, Result

RECORD = Calibration(
    date(2026, 11, 22), "numpy", "simulated", 2, "Z80, 1 cores", False, True, 0.004, {"numpy": "2.0"},
    {"kernels": 0.051, "all_reduce over data": 0.2},
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store profiles in a folder of the test."""
    monkeypatch.setenv("MITHRIL_DATA_DIR", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refusal(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, OptionError | BackendError), error
    return str(error)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Return the engines that are measured, in no time."""
    engines: list[Engine] = []

    def measure(engine: Engine, packages: list[str], advance) -> object:
        assert packages == ["numpy"]
        engines.append(engine)
        advance("memory")
        return replace(SIMULATED, name="card-calibrated", calibration=RECORD)

    monkeypatch.setattr("mithril.cost.calibrate.calibrate", measure)
    return engines


def test_the_profile_is_written_and_described(measured: list[Engine]) -> None:
    done = run("calibrate", "--backend", "numpy", "--mesh", "data=2")
    assert done.exit_code == 0, done.output
    path = find_path("numpy", "simulated", 2)
    assert json.loads(path.read_text())["calibration"]["date"] == "2026-11-22"
    assert [engine.mesh.size for engine in measured] == [2]
    lines = done.output.splitlines()
    assert lines[0].startswith("numpy on 2 x simulated: ")
    assert lines[1] == "numpy on 2 x simulated (Z80, 1 cores)"
    assert "  kernel             0 s   (fit within 5%)" in lines
    assert lines[-1] == f"  written to         {path}"
    assert not list(path.parent.glob("*json?*")), "nothing else is left"


def test_packages_are_those_that_requirements_name(
    measured: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = opening.ready_spec(opening.require("numpy"))
    needs = ("numpy[extra]~=2.0", "absent>=1; sys_platform == 'none'")
    monkeypatch.setattr(opening, "ready_spec", lambda entry: replace(spec, requires=needs))
    assert run("calibrate", "--backend", "numpy").exit_code == 0
    assert measured


def test_a_file_of_ones_own_is_not_used_unasked(measured: list[Engine], tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    assert run("calibrate", "--backend", "numpy", "--out", str(out)).exit_code == 0
    assert out.exists()
    assert not find_path("numpy", "simulated", 1).exists()
    assert measured


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend", "numpy"], "backend 'numpy' simulates its devices, which have no speed of"),
        (["--backend", "nmpy"], "backend 'nmpy' does not exist; installed: "),
        (["--backend", "numpy", "--out", "x.toml"], "--out 'x.toml' is no JSON file; give a name"),
        (["--mesh", "data"], "--mesh part 'data' is not an axis and its size; write --mesh data=2"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], said: str) -> None:
    assert refusal("calibrate", *arguments).startswith(said)


def test_without_real_devices_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MITHRIL_PLUGINS", "numpy")
    assert refusal("calibrate").startswith("mithril calibrate found no backend with real devices;")


def test_one_file_holds_one_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "mithril.cli.calibrate._list_backends"
    monkeypatch.setattr(names, lambda: ["jax", "torch"])
    assert refusal("calibrate", "--out", "x.json") == (
        "--out takes the profile of one backend; say which by --backend"
    )


class TestHardware:
    def test_all_profiles_are_listed(self) -> None:
        lines = run("hardware").output.splitlines()
        assert lines[0].split() == ["NAME", "FROM", "MEMORY", "BFLOAT16", "STATUS", "NOTE"]
        assert len(lines) == 1 + len(list_profiles())
        assert any(line.startswith("h100-sxm   mithril-core  80 GB ") for line in lines)
        document = json.loads(run("hardware", "--json").output)
        assert {row["status"] for row in document["hardware"]} == {"ready"}

    def test_one_is_shown_with_the_sources_of_its_figures(self) -> None:
        text = run("hardware", "h100-sxm").output
        assert "  memory                       80 GB   (NVIDIA H100 Tensor Core GPU" in text
        assert "  levels[1].latency            4 us   (NCCL, src/graph/tuning.cc" in text
        document = json.loads(run("hardware", "h100-sxm", "--json").output)
        assert (document["memory"], document["schema"]) == ("80 GB", 1)
        assert document["sources"]["memory"].startswith("NVIDIA H100")

    def test_an_unknown_one_is_refused(self) -> None:
        assert refusal("hardware", "h100").startswith("hardware 'h100' has no profile; did you")


def test_info_shows_the_profile_and_what_was_measured(measured: list[Engine]) -> None:
    def shown() -> list[str]:
        return run("backends", "info", "numpy").output.splitlines()

    assert "  hardware      simulated   (from mithril-core)" in shown()
    assert run("calibrate", "--backend", "numpy", "--mesh", "data=2").exit_code == 0
    (row,) = [line for line in shown() if line.startswith("  calibrated")]
    path = find_path("numpy", "simulated", 2)
    assert row.startswith(f"  calibrated    {path}   (left aside: was measured with machine 'Z80, ")
    opened = json.loads(run("backends", "info", "numpy", "--json").output)["backend"]["opened"]
    assert opened["hardware"] == {
        "profile": "simulated", "origin": "mithril-core", "unknown_platform": "",
    }  # fmt: skip
    assert measured
