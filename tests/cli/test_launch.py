"""`mithril launch`, run as a user runs it, with backends that strangers could have written."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from mithril.errors import BackendError, OptionError
from mithril.plugins import BackendSpec, Command, LaunchRequest, free_port
from mithril.plugins.spec import check_specs

from tests.plugin_packages import environment, mithril, write_plugin
from tests.profiles import quick

PLUGIN = """
from mithril.plugins import Command, free_port

def launch(request):
    place = request.coordinator or f"127.0.0.1:{free_port()}"
    return [
        Command(request.argv, {"JOB": f"rank {rank} of {request.total} at {place}"}, rank)
        for rank in request.ranks
    ]

@hookimpl
def mithril_backends():
    return [BackendSpec("NAME", never, api=(2, 0), launch=launch)]
"""
SCRIPT = """
import os, sys
print(os.environ["JOB"], sys.argv[1:])
sys.exit(int(sys.argv[-1]) if os.environ["JOB"].startswith("rank 1") else 0)
"""


def plugin(folder: Path, name: str, launch: str = "launch") -> None:
    source = PLUGIN.replace("NAME", name).replace("launch=launch", f"launch={launch}")
    write_plugin(folder, name, source)


def launch(*arguments: str, path: Path, allowed: str = "grid,numpy") -> CompletedProcess[str]:
    """Run the command where no other backend counts, whatever is installed here."""
    return mithril("launch", *arguments, path=path, MITHRIL_PLUGINS=allowed)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with the backend `grid`, and a script that tells what it was given."""
    plugin(tmp_path, "grid")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


class TestRuns:
    @pytest.mark.slow
    def test_every_rank_gets_its_place_and_the_arguments(self, packages: Path) -> None:
        script = str(packages / "train.py")
        done = launch("-n", "3", script, "--lr", "1", "-n", "--help", "0", path=packages)
        assert (done.returncode, done.stderr) == (0, "")
        for rank, line in enumerate(sorted(done.stdout.splitlines())):
            assert line.startswith(f"[{rank}] rank {rank} of 3 at 127.0.0.1:")
            assert line.endswith(" ['--lr', '1', '-n', '--help', '0']")

    @pytest.mark.slow
    def test_the_exit_code_is_that_of_the_culprit(self, packages: Path) -> None:
        done = launch("-n", "2", str(packages / "train.py"), "5", path=packages)
        assert done.returncode == 5
        assert done.stderr.startswith("mithril launch: rank 1 ended with exit code 5 (pid ")
        assert done.stderr.count("\n") == 1

    @pytest.mark.slow
    def test_several_machines(self, packages: Path) -> None:
        where = ("--nodes", "3", "--node-rank", "2", "--coordinator", "node0:29500")
        script = str(packages / "train.py")
        done = launch("-n", "2", *where, script, "0", path=packages)
        assert sorted(done.stdout.splitlines()) == [
            "[4] rank 4 of 6 at node0:29500 ['0']",
            "[5] rank 5 of 6 at node0:29500 ['0']",
        ]

    @pytest.mark.slow
    def test_files_of_the_job_go_with_it(self, tmp_path: Path) -> None:
        command = 'lambda request: [Command(request.argv, {"JOB": request.folder}, 0)]'
        plugin(tmp_path, "filing", command)
        (tmp_path / "file.py").write_text("""
import os
import re
print(os.environ["JOB"], os.listdir(os.environ["JOB"]))
open(os.environ["JOB"] + "/file", "w").close()
""")
        done = launch(str(tmp_path / "file.py"), path=tmp_path, allowed="filing")
        assert (done.returncode, done.stderr) == (0, "")
        _, folder, listed = done.stdout.split()
        assert listed == "[]"
        assert not Path(folder).exists()

    @pytest.mark.slow
    def test_ctrl_c(self, packages: Path) -> None:
        (packages / "wait.py").write_text("import time; print('up'); time.sleep(600)")
        command = [str(Path(sys.executable).with_name("mithril")), "launch", "--grace", "0.5"]
        with subprocess.Popen(
            [*command, str(packages / "wait.py")],
            env=environment(packages, MITHRIL_PLUGINS="grid"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "[0] up\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors.startswith("mithril launch: SIGINT ended the launch after ")
        assert errors.endswith("; the other 1 process was stopped\n")

    @pytest.mark.slow
    def test_a_torn_pipe_is_no_traceback(self, packages: Path) -> None:
        (packages / "many.py").write_text("while True: print('x' * 1000)")
        command = f"{Path(sys.executable).with_name('mithril')} launch {packages / 'many.py'}"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{command} | head -1"],
            env=environment(packages, MITHRIL_PLUGINS="grid"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 141
        assert done.stdout == "[0] " + "x" * 1000 + "\n"
        assert done.stderr.startswith("mithril launch: nobody reads the output any more, after ")
        assert done.stderr.count("\n") == 1

    def test_help_lists_it(self, tmp_path: Path) -> None:
        told = mithril("--help", path=tmp_path).stdout
        assert re.search(r"^  launch +Run a script in several processes", told, re.MULTILINE)


class TestMistakes:
    @quick(lambda arguments: "node0" in arguments or "gird" in arguments)
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-n", "0"], "OptionError: -n 0 starts no process; give at least 1"),
            (["--nodes", "0"], "OptionError: --nodes 0 is no machine; give at least 1"),
            (
                ["--nodes", "2", "--node-rank", "2", "--coordinator", "a:1"],
                "OptionError: --node-rank 2 is none of 2 nodes; give 0 to 1, or a larger --nodes",
            ),
            (["--node-rank", "-1"], "OptionError: --node-rank -1 is none of 1 nodes"),
            (["--nodes", "2"], "OptionError: --nodes 2 needs a place where they meet; give the"),
            (
                ["--coordinator", "node0"],
                "OptionError: --coordinator 'node0' is not HOST:PORT with a port from 1 to 65535",
            ),
            (
                ["--backend", "gird"],
                "BackendError: backend 'gird' does not exist; installed: 'grid', ",
            ),
            (
                ["--backend", "numpy"],
                "BackendError: backend 'numpy' (NumPy on simulated devices, in one process) does "
                "not start processes; it opens a whole mesh in one: python train.py; "
                "those that do: 'grid'",
            ),
        ],
    )
    def test_is_one_line(
        self,
        arguments: list[str],
        message: str,
        packages: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(packages)
        done = launch(*arguments, "train.py", "0", path=packages)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(message)
        assert done.stderr.count("\n") == 1

    def test_a_near_name_is_offered(self, packages: Path) -> None:
        done = launch("--backend", "gird", str(packages / "train.py"), path=packages)
        assert done.stderr.endswith("; did you mean 'grid'?\n")

    def test_script_is_missing(self, packages: Path) -> None:
        script = str(packages / "trian.py")
        done = launch(script, path=packages)
        assert done.returncode == 1
        assert done.stderr == (
            f"OptionError: script '{script}' is no file; give the path of a Python file"
            f"; did you mean 'train.py'?\n"
        )

    def test_backend_is_not_ready(self, packages: Path) -> None:
        write_plugin(packages, "bad", "raise RuntimeError('no board')")
        script = str(packages / "train.py")
        done = launch("--backend", "bad", script, "0", path=packages, allowed="bad")
        assert done.returncode == 1
        assert done.stderr.startswith("BackendError: backend 'bad' is broken; RuntimeError: no bo")

    def test_no_backend_has_a_launcher(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(SCRIPT)
        done = launch(str(tmp_path / "train.py"), path=tmp_path, allowed="numpy")
        assert done.returncode == 1
        assert done.stderr == (
            "BackendError: mithril launch needs one ready backend that starts processes; "
            "found none; pip install mithril-jax, mithril-torch or mithril-mlx\n"
        )

    @pytest.mark.slow
    def test_two_have_one(self, packages: Path) -> None:
        plugin(packages, "ring")
        allowed = "grid,numpy,ring"
        script = str(packages / "train.py")
        done = launch(script, "0", path=packages, allowed=allowed)
        assert done.returncode == 1
        assert done.stderr.endswith("found 'grid', 'ring'; choose one with --backend\n")
        done = launch("--backend", "ring", script, "0", path=packages, allowed=allowed)
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            ("lambda request: 1 / 0", "failed to say what to launch; ZeroDivisionError: division"),
            ("lambda request: []", "gave [] to launch; its plugin must return a list of Command"),
            ("lambda request: ['python']", "gave ['python'] to launch; its plugin must return"),
        ],
    )
    def test_faulty_launchers_are_named(self, answer: str, message: str, packages: Path) -> None:
        plugin(packages, "faulty", answer)
        script = str(packages / "train.py")
        done = launch("--backend", "faulty", script, "0", path=packages, allowed="faulty")
        assert done.returncode == 1
        assert done.stderr.startswith(f"BackendError: backend 'faulty' {message}")

    def test_a_launcher_that_is_no_function(self) -> None:
        spec = BackendSpec("x", open=print, api=(2, 0), launch="torchrun")  # type: ignore[arg-type]
        with pytest.raises(
            BackendError, match=r"BackendSpec.launch is 'torchrun'; give a function"
        ):
            check_specs([spec])


class TestRequest:
    @pytest.mark.parametrize("address", ["node0:1", "10.0.0.1:65535", "[fd00::1]:29500"])
    def test_addresses(self, address: str) -> None:
        assert LaunchRequest("a.py", coordinator=address).coordinator == address

    @pytest.mark.parametrize(
        "address",
        ["node0", ":80", "node0:", "node0:0", "node0:65536", "a:b:1", "fd00::1:80", " :1"],
    )
    def test_others_are_refused(self, address: str) -> None:
        with pytest.raises(OptionError, match="is not HOST:PORT with a port from 1 to 65535"):
            LaunchRequest("a.py", coordinator=address)

    def test_names(self) -> None:
        assert Command(("torchrun",)).name == "'torchrun'"
        assert Command(("python",), rank=3).name == "rank 3"
        assert Command(("python",), service="store").name == "store"

    def test_a_rank_is_no_service(self) -> None:
        with pytest.raises(OptionError) as caught:
            Command(("python",), rank=3, service="store")
        assert str(caught.value) == "Command is rank 3 and the service 'store'; give one of them"

    def test_free_ports_differ(self) -> None:
        assert len({free_port() for _ in range(20)}) > 1
