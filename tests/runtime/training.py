"""A job that `mithril launch` runs for a long time: the tests look at its processes and kill some."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.runtime.jobs import processes_of

TRAIN = str(Path(__file__).parent.parent.parent / "examples/train_gpt.py")
MITHRIL = str(Path(sys.executable).with_name("mithril"))
MARK = "MITHRIL_TESTS_JOB"
"""In the environment of all processes of a job: other tests run the same script at the same time."""


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
        self._mark = uuid4().hex
        self.launcher = subprocess.Popen(
            [MITHRIL, "launch", "-n", str(ranks), "--backend", backend, TRAIN, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", MARK: self._mark},
        )
        assert self.launcher.stdout is not None
        for line in self.launcher.stdout:
            if "step 3" in line:
                break

    def processes(self) -> dict[str, int]:
        """Return the processes by rank; one that has none is called the agent."""
        return {
            variables.get(self._variable, "agent"): pid
            for pid, variables in processes_of(TRAIN)
            if pid != self.launcher.pid and variables.get(MARK) == self._mark
        }


@contextmanager
def training(backend: str, ranks: int, mesh: str, variable: str) -> Iterator[Training]:
    """Run a job until the test is over; skip the test where processes cannot be looked at."""
    if not Path("/proc").is_dir():
        pytest.skip("processes are found through /proc")
    running = Training(backend, ranks, mesh, variable)
    with running.launcher:
        yield running
        running.launcher.kill()
