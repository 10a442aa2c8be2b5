"""`mithril doctor`: what this machine has, and what is wrong with it."""

from __future__ import annotations

import json
import os
import shutil

import mithril.plugins.opening
import pytest
from mithril.cli import doctor
from mithril.cli.app import app
from mithril.cli.doctor import Finding, State
from mithril.errors import BackendError
from typer.testing import CliRunner


def find(check: doctor.Check) -> list[Finding]:
    return list(check())


@pytest.mark.slow
def test_a_machine_that_is_well() -> None:
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    for topic in ("interpreter", "packages", "backends", "blas", "processors", "memory", "disk"):
        assert any(line.startswith(topic) for line in done.stdout.splitlines())
    assert "numpy (mithril-core" in done.stdout
    assert "0 faults" in done.stdout.splitlines()[-1]


def test_json_and_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Finding("disk", "it is full", State.fault, "make room")
    monkeypatch.setattr(doctor, "CHECKS", (doctor.check_interpreter, lambda: iter([fault])))
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["findings"][-1] == {
        "topic": "disk", "text": "it is full", "state": "fault", "remedy": "make room",
    }  # fmt: skip
    text = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    assert text[-3:] == [
        "disk         fault: it is full", "             -> make room", "1 faults, 0 notes",
    ]  # fmt: skip


def test_what_is_missing_is_said_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for check in (doctor.check_mpi, doctor.check_compilers):
        (finding,) = find(check)
        assert finding.state is State.note
        assert "apt-get install" in finding.remedy


def test_packages_that_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "requires", lambda name: ["numpy>=999", "rich>=1", "x; extra == 'y'"]
    )
    found = {finding.text.split()[0]: finding for finding in find(doctor.check_packages)}
    assert found["numpy"].state is State.fault
    assert found["numpy"].remedy == "pip install 'numpy>=999'"
    assert found["rich"].state is State.fact
    assert "x" not in found


def test_a_backend_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise BackendError("backend finds no device; plug one in")

    monkeypatch.setattr(mithril.plugins.opening, "open_entry", refuse)
    found = [f for f in find(doctor.check_backends) if f.text.startswith("numpy ")]
    assert [(f.state, f.remedy) for f in found] == [
        (State.fault, "BackendError: backend finds no device; plug one in")
    ]


def test_little_memory_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_read_memory", lambda: (2**20, 2**33))
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    states = {finding.topic: finding.state for finding in find(doctor.check_memory)}
    assert (states["memory"], states["disk"]) == (State.note, State.note)


def test_variables_that_change_what_mithril_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MITHRIL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MITHRIL_PLUGINS", "numpy")
    assert [finding.text for finding in find(doctor.check_environment)] == ["MITHRIL_PLUGINS=numpy"]
