"""`mithril backends` and the command around it, run as a user runs them, beside faulty plugins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from mithril.cli import backends

from tests.kit.faulty import write_faulty
from tests.plugin_packages import (
    FAULTY,
    environment,
    installed,
    mithril,
    python,
    write_plugin,
)

NUMPY = version("numpy")


@pytest.fixture(scope="module")
def packages() -> Path:
    return installed("good", *FAULTY)


def rows(table: str) -> list[list[str]]:
    """Return the cells of a table whose columns are two spaces or more apart."""
    lines = table.splitlines()
    starts = [lines[0].index(title) for title in lines[0].split()]
    ends = [*starts[1:], None]
    return [
        [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        for line in lines[:-1]
    ]


class TestList:
    @pytest.mark.slow
    def test_it_reads_metadata_alone(self, packages: Path) -> None:
        done = mithril("backends", "list", "--metadata", path=packages)
        assert (done.returncode, done.stderr) == (0, "")
        found = [row for row in rows(done.stdout)[1:] if row[0] != "numpy"]
        assert found == [
            ["fpga", "acme-broken 0.3.1", "?", "?", "installed", ""],
            ["npu", "acme-incompatible 2.0.0", "?", "?", "installed", ""],
            ["quantum", "acme-missing 1.4.0", "?", "?", "installed", ""],
            ["tpu-sim", "acme-good 1.2.0", "?", "?", "installed", ""],
        ]
        assert done.stdout.splitlines()[-1] == "1 ready, 4 installed, 1 duplicate"

    def test_metadata_tell_what_is_missing_and_incompatible(self, tmp_path: Path) -> None:
        write_plugin(tmp_path, "a", "1 / 0", requires=["mithril-core>=9", "numpy"])
        write_plugin(tmp_path, "b", "1 / 0", requires=["numpy<1", "mithril-core"])
        write_plugin(tmp_path, "c", "1 / 0", requires=["mithril-core", "numpy>=2,<1000"])
        done = mithril("backends", "list", "--metadata", path=tmp_path)
        found = [row for row in rows(done.stdout)[1:] if row[0] != "numpy"]
        assert found == [
            ["a", "acme-a 1.0", f"numpy {NUMPY}", "?", "incompatible",
             "needs mithril-core>=9, this mithril is 0.1.0 · pip install 'mithril-core>=9'"],
            ["b", "acme-b 1.0", f"numpy {NUMPY}", "?", "missing",
             f"needs numpy<1, found {NUMPY} · pip install 'numpy<1'"],
            ["c", "acme-c 1.0", f"numpy {NUMPY}", "?", "installed", ""],
        ]  # fmt: skip

    def test_metadata_that_cannot_be_read_harm_no_other(self, tmp_path: Path) -> None:
        write_plugin(tmp_path, "odd", "1 / 0", requires=["numpy>=>2"])
        done = mithril("backends", "list", "--metadata", path=tmp_path)
        (odd,) = [row for row in rows(done.stdout)[1:] if row[0] == "odd"]
        assert odd[4] == "broken"
        assert odd[5].startswith("BackendError: requirement 'numpy>=>2' is not understood: ")

    def test_twenty_plugins_are_listed_and_none_of_them_imported(self, tmp_path: Path) -> None:
        light = "from mithril.spi import BackendSpec, hookimpl\nprint('loaded')\n"
        for number in range(20):
            spec = f"BackendSpec('chip{number}', lambda mesh: None, api=(2, 0))"
            source = f"{light}\n@hookimpl\ndef mithril_backends():\n    return [{spec}]\n"
            needs = ["mithril-core>=0.1,<1", "numpy>=2"]
            write_plugin(tmp_path, f"chip{number}", source, requires=needs)
        code = """
import sys
from mithril.cli.app import app
app(["backends", "list"], standalone_mode=False)
assert not [name for name in sys.modules if name.startswith("acme_")]
assert not {"jax", "mlx", "torch", "numpy", "mithril.engine"} & set(sys.modules)
"""
        listed = python(code, tmp_path)
        assert "loaded" not in listed
        assert listed.splitlines()[-1] == "21 ready"

    def test_one_that_hangs_does_not_hold_up_the_list(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_plugin(tmp_path, "slow", "import time; time.sleep(1000)", requires=["numpy>=2"])
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(backends, "PATIENCE", 1)
        started = time.monotonic()
        backends.list_backends(as_json=False, metadata=False, strict=False)
        assert time.monotonic() - started < 15
        printed = capsys.readouterr()
        assert printed.err == (
            "plugins take more than 1 s to load; shown is what packages declare\n"
        )
        assert ["slow", "acme-slow 1.0", f"numpy {NUMPY}", "?", "installed", ""] in rows(
            printed.out
        )

    def test_one_that_exits_is_broken(self, tmp_path: Path) -> None:
        write_plugin(tmp_path, "gone", "raise SystemExit(3)", requires=["numpy>=2"])
        done = mithril("backends", "list", path=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        (found,) = (row for row in rows(done.stdout)[1:] if row[0] == "gone")
        assert found[4:] == ["broken", "SystemExit: 3 · mithril backends info gone"]

    def test_one_that_ends_the_process_is_shown_as_it_is_declared(self, tmp_path: Path) -> None:
        write_plugin(tmp_path, "gone", "import os; os._exit(7)", requires=["numpy>=2"])
        done = mithril("backends", "list", path=tmp_path)
        assert done.returncode == 0
        assert done.stderr == (
            "a plugin ends the process that loads it, with 7; shown is what packages declare\n"
        )
        assert "installed" in [row[4] for row in rows(done.stdout)[1:] if row[0] == "gone"]

    def test_it_shows_every_backend_and_its_state(self, packages: Path) -> None:
        done = mithril("backends", "list", path=packages)
        assert (done.returncode, done.stderr) == (0, "")
        quantum = "acme-quantum-framework>=3.1"
        assert rows(done.stdout) == [
            ["NAME", "PACKAGE", "FRAMEWORK", "API", "STATUS", "NOTE"],
            [
                "fpga",
                "acme-broken 0.3.1",
                "?",
                "?",
                "broken",
                "RuntimeError: no board answered in 8 slots; is the driver loaded? · mithril backends info fpga",
            ],
            [
                "npu",
                "acme-incompatible 2.0.0",
                "-",
                "3.0",
                "incompatible",
                "speaks backend API 3.0, this mithril 2.5 · pip install -U mithril-core",
            ],
            [
                "numpy",
                "acme-duplicate 0.9.0",
                "?",
                "?",
                "duplicate",
                "name also claimed by 'mithril-core' · "
                "MITHRIL_BACKEND_NUMPY=acme-duplicate selects this one",
            ],
            ["numpy", "mithril-core 0.1.0", f"numpy {NUMPY}", "2.5", "ready", ""],
            [
                "quantum",
                "acme-missing 1.4.0",
                "-",
                "2.0",
                "missing",
                f"needs {quantum} · pip install '{quantum}'",
            ],
            ["tpu-sim", "acme-good 1.2.0", f"numpy {NUMPY}", "2.0", "ready", ""],
        ]
        assert done.stdout.splitlines()[-1] == (
            "2 ready, 1 missing, 1 incompatible, 1 broken, 1 duplicate"
        )
        assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]

    def test_json_has_its_schema(self, packages: Path) -> None:
        done = mithril("backends", "list", "--json", path=packages)
        document = json.loads(done.stdout)
        assert (done.returncode, done.stderr) == (0, "")
        assert (document["schema"], document["mithril"], document["api"]) == (1, "0.1.0", "2.5")
        by_package = {row["package"]: row for row in document["backends"]}
        assert list(by_package) == [
            "acme-broken",
            "acme-incompatible",
            "acme-duplicate",
            "mithril-core",
            "acme-missing",
            "acme-good",
        ]
        assert by_package["mithril-core"] == {
            "name": "numpy",
            "package": "mithril-core",
            "package_version": "0.1.0",
            "framework": "numpy",
            "framework_version": NUMPY,
            "api": "2.5",
            "status": "ready",
            "note": "",
            "entry_point": "mithril.plugins.numpy",
        }
        broken = by_package["acme-broken"]
        assert (broken["framework"], broken["api"], broken["status"]) == (None, None, "broken")
        assert by_package["acme-missing"]["framework_version"] is None

    @pytest.mark.slow
    def test_info_as_json(self, packages: Path) -> None:
        done = mithril("backends", "info", "numpy", "--json", path=packages)
        assert (done.returncode, done.stderr) == (0, "")
        document = json.loads(done.stdout)
        assert (document["schema"], document["mithril"]) == (1, "0.1.0")
        found = document["backend"]
        assert (found["name"], found["status"], found["api"]) == ("numpy", "ready", "2.5")
        opened = found["opened"]
        assert opened["devices"] == ["simulated cpu 0"]
        assert "all_reduce" in opened["capabilities"]
        assert "einsum" in opened["kernels"]
        assert opened["without_kernel"] == opened["missing"] == []
        assert 0 <= opened["opened_in"] < 60

    @pytest.mark.slow
    def test_info_says_what_absent_ops_and_collectives_mean(self, tmp_path: Path) -> None:
        fault = "Faulty.capabilities = frozenset({'all_reduce'})\n"
        write_faulty(tmp_path, fault + "del KERNELS['from_host'], KERNELS['svd'], KERNELS['gelu']")
        done = mithril("backends", "info", "faulty", path=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        lines = [line.strip() for line in done.stdout.splitlines()]
        absent = (
            "no all_gather, all_to_all, permute, reduce_scatter: plans that need one are refused"
        )
        assert absent in lines
        assert any(line.endswith("have a kernel; expanded: gelu") for line in lines), lines
        assert "no kernel and no expansion: svd; plans that need one are refused" in lines
        assert (
            "no from_host: nothing is kept in the host's memory, options that offload are refused, "
            "all else runs"
        ) in lines

    @pytest.mark.slow
    def test_info_as_json_of_what_cannot_be_opened(self, packages: Path) -> None:
        done = mithril("backends", "info", "quantum", "--json", path=packages)
        assert done.returncode == 3
        found = json.loads(done.stdout)["backend"]
        assert (found["status"], found["opened"]) == ("missing", None)
        assert done.stderr.startswith("BackendError: ")

    @pytest.mark.slow
    def test_strict_asks_that_all_are_ready(self, packages: Path, tmp_path: Path) -> None:
        assert mithril("backends", "list", "--strict", path=packages).returncode == 1
        assert mithril("backends", "list", "--strict", path=tmp_path).returncode == 0
        both = mithril("backends", "list", "--strict", "--json", path=packages)
        assert both.returncode == 1
        assert json.loads(both.stdout)["schema"] == 1

    def test_blocked_backends_are_counted(self, packages: Path) -> None:
        done = mithril("backends", "list", path=packages, MITHRIL_PLUGINS="tpu-sim")
        assert done.stdout.splitlines()[-1] == "1 ready, 5 blocked"

    def test_no_framework_is_imported(self, packages: Path, tmp_path: Path) -> None:
        for framework in ("jax", "mlx", "torch"):  # importable, so an import would be seen
            (tmp_path / f"{framework}.py").touch()
        code = """
import sys
from mithril.cli.backend_rows import print_loaded
print_loaded()
assert "acme_good.plugin" in sys.modules
assert not {"jax", "mlx", "torch", "acme_good.framework"} & set(sys.modules)
"""
        loaded = json.loads(python(code, packages, tmp_path).lstrip("\x00"))
        assert {row["name"] for row in loaded} >= {"numpy", "tpu-sim"}

    @pytest.mark.slow
    @pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
    @pytest.mark.parametrize(("variables", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
    def test_colour_is_for_terminals_only(
        self, variables: dict[str, str], colored: bool, packages: Path
    ) -> None:
        command = [str(Path(sys.executable).with_name("mithril")), "backends", "list"]
        ours, theirs = os.openpty()
        env = {k: v for k, v in environment(packages).items() if k != "NO_COLOR"} | variables
        done = subprocess.run(command, env=env, stdout=theirs, check=False)
        os.close(theirs)
        text = os.read(ours, 100_000).decode()
        os.close(ours)
        assert done.returncode == 0
        assert ("\x1b[32mready\x1b[0m" in text) is colored
        assert "\x1b[" not in mithril("backends", "list", path=packages).stdout


class TestInfo:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["numpy", "tpu-sim"])
    def test_it_opens_the_backend(self, name: str, packages: Path) -> None:
        done = mithril("backends", "info", name, path=packages)
        assert (done.returncode, done.stderr) == (0, "")
        lines = {line.split()[0]: " ".join(line.split()[1:]) for line in done.stdout.splitlines()}
        assert lines["status"] == "ready"
        assert lines["framework"] == f"numpy {NUMPY} requires numpy>=2.0"
        assert lines["devices"] == "simulated cpu ×1"
        assert lines["capabilities"] == "all_gather all_reduce all_to_all permute reduce_scatter"
        assert "have a kernel" in lines["operators"]
        assert lines["opened"].endswith(" s")

    @pytest.mark.slow
    def test_it_shows_what_the_plugin_says_of_itself(self, packages: Path) -> None:
        text = mithril("backends", "info", "tpu-sim", path=packages).stdout
        assert text.startswith("tpu-sim — A simulated accelerator   https://example.org/tpu-sim\n")
        assert f"acme-good 1.2.0   (acme_good.plugin, {packages / 'acme_good'})" in text
        assert "  option        chips: int = 8\n" in text

    @pytest.mark.slow
    def test_a_broken_one_shows_where_it_broke(self, packages: Path) -> None:
        done = mithril("backends", "info", "fpga", path=packages)
        assert done.returncode == 3
        assert "acme-broken 0.3.1" in done.stdout
        assert "status        broken" in done.stdout
        lines = done.stderr.splitlines()
        assert lines[0] == "Traceback inside acme_broken.plugin (last 5 frames at most):"
        files = [line for line in lines if line.startswith("  File ")]
        repeats = re.findall(r"Previous line repeated (\d+) more", done.stderr)
        assert len(files) + sum(map(int, repeats)) == 5
        assert all(str(packages / "acme_broken" / "driver.py") in line for line in files)
        assert "RuntimeError: no board answered in 8 slots" in lines
        assert lines[-1] == (
            "BackendError: backend 'fpga' is broken; RuntimeError: no board answered in 8 slots; is the driver loaded?; "
            "mithril backends info fpga"
        )

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("npu", "BackendError: backend 'npu' is incompatible; speaks backend API 3.0"),
            ("quantum", "BackendError: backend 'quantum' is missing; needs acme-quantum-framework"),
            ("jax", "BackendError: backend 'jax' is not installed; pip install mithril-jax"),
            ("nunpy", "BackendError: backend 'nunpy' does not exist; installed: 'fpga', "),
        ],
    )
    def test_exit_code_3_if_it_cannot_be_opened(self, name: str, text: str, packages: Path) -> None:
        done = mithril("backends", "info", name, path=packages)
        assert done.returncode == 3
        assert done.stderr.startswith(text)
        assert len(done.stderr.splitlines()) == 1


class TestCommand:
    def test_version(self, tmp_path: Path) -> None:
        done = mithril("--version", path=tmp_path)
        assert (done.returncode, done.stdout) == (0, "mithril 0.1.0\n")

    @pytest.mark.slow
    def test_a_users_mistake_is_one_line(self, tmp_path: Path) -> None:
        done = mithril("demo", "--backend", "jax", path=tmp_path)
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "BackendError: backend 'jax' is not installed; pip install mithril-jax"
        ]

    def test_strict_shows_the_plugins_own_traceback(self, packages: Path) -> None:
        done = mithril("backends", "list", path=packages, MITHRIL_STRICT="1")
        assert done.returncode == 1
        assert "RuntimeError: no board answered in 8 slots" in done.stderr
        assert "Traceback (most recent call last)" in done.stderr
