"""Scripts that `mithril launch` runs, also for a long time: tests look at their processes and kill some."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from uuid import uuid4

import pytest

from tests.runtime.jobs import processes_of, waits_for

ROOT = Path(__file__).parent.parent.parent
TRAIN = str(ROOT / "examples/train_gpt.py")
LIMIT = 240
MITHRIL = str(Path(sys.executable).with_name("mithril"))
MARK = "MITHRIL_TESTS_JOB"
"""In the environment of all processes of a job: other tests run the same script at the same time."""


def ran(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with one thread a process, and return how it went."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def launched(
    backend: str, ranks: int, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `mithril launch`, which shows before each line which rank it is of."""
    command = [MITHRIL, "launch", "--backend", backend, "-n", str(ranks), *arguments]
    return ran(command, **environment)


def script(folder: Path, code: str, *modules: str) -> str:
    """Write a script that imports some modules besides the usual ones, and return its path."""
    path = folder / "job.py"
    head = ", ".join(["mithril as ml", "numpy as np", "os", "sys", *modules])
    path.write_text(f"import {head}\nfrom mithril import P\n{code}", encoding="utf-8")
    return str(path)


def lines_of(rank: int, text: str) -> list[str]:
    """Return what a rank printed under `mithril launch`."""
    start = f"[{rank}] "
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def losses(text: str) -> list[float]:
    """Return the losses that the example printed."""
    return [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d{6})", text)]


class Training:
    """The launcher of such a job, and the processes it has started.

    Args:
        backend: what it runs on.
        ranks: how many processes.
        mesh: as on the command line.
        variable: by which a process knows its rank.
    """

    def __init__(self, backend: str, ranks: int, mesh: str, variable: str) -> None:
        options = ("--backend", backend, "--mesh", mesh, "--steps", "100000")
        self._variable = variable
        self.mark = uuid4().hex
        self.launcher = subprocess.Popen(
            [MITHRIL, "launch", "-n", str(ranks), "--backend", backend, TRAIN, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", MARK: self.mark},
        )
        assert self.launcher.stdout is not None
        for line in self.launcher.stdout:
            if "step 3" in line:
                return
        raise AssertionError(f"the job ended at once: {self.launcher.communicate()[1]}")

    def processes(self) -> dict[str, int]:
        """Return the processes by rank; one that has none is called the agent."""
        return {
            variables.get(self._variable, "agent"): pid
            for pid, variables in processes_of(TRAIN)
            if pid != self.launcher.pid and variables.get(MARK) == self.mark
        }

    def kill(self, rank: int) -> tuple[str, float]:
        """Kill a rank; return the launcher's last words, and the seconds until it has ended."""
        killed = time.monotonic()
        os.kill(self.processes()[str(rank)], signal.SIGKILL)
        _, errors = self.launcher.communicate(timeout=60)
        return errors.splitlines()[-1], time.monotonic() - killed


@contextmanager
def training(backend: str, ranks: int, mesh: str, variable: str) -> Iterator[Training]:
    """Run a job until the test is over; skip the test where processes cannot be looked at."""
    if not Path("/proc").is_dir():
        pytest.skip("processes are found through /proc")
    running = Training(backend, ranks, mesh, variable)
    with running.launcher:
        yield running
        running.launcher.kill()


def files_of_a_killed_launcher(backend: str, folder: Path, variable: str) -> list[str]:
    """Kill the launcher of two ranks that exchange data; return what stays in the folder for
    temporary files when the ranks have ended."""
    temporary, job = folder / "temporary", folder / "job"
    temporary.mkdir()
    job.mkdir()
    opens = f"""
backend = ml.open_backend({backend!r}, ml.Mesh(data=2))
print("rank", os.environ[{variable!r}], backend.ones(8, sharding=P("data")).sum().item(), flush=True)
import time; time.sleep(600)
"""
    command = [MITHRIL, "launch", "-n", "2", "--backend", backend, script(job, opens)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)},
    ) as launcher:
        assert launcher.stdout is not None
        lines = (line for line in launcher.stdout if "rank" in line and "8.0" in line)
        assert len([*islice(lines, 2)]) == 2
        assert any(temporary.iterdir()), "while it runs there is a folder of the job"
        launcher.kill()
    waits_for(lambda: not any(processes_of(str(job))) and not any(temporary.iterdir()), 10)
    return sorted(path.name for path in temporary.iterdir())
