"""Starts scripts in several processes, as users of `mithril launch` and of mpirun do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.training import MITHRIL

ROOT = Path(__file__).parent.parent.parent
SPMD = str(ROOT / "tests/mlx/spmd.py")
HEAD = "import mithril as ml, mlx.core as mx, numpy as np, os, sys\nfrom mithril import P\n"
LIMIT = 240
MUST_HAVE_MPI = "MITHRIL_TESTS_NEED_MPI"
"""Set where a missing MPI is a failure, as in CI."""


def ran(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with one thread a process, and return how it went."""
    more = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env={**os.environ, **more},
    )


def launch(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `mithril launch`, which shows before each line which rank it is of."""
    return ran([MITHRIL, "launch", "--backend", "mlx", "-n", str(ranks), *arguments])


def mpirun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mpirun, on this machine only; skip the test where there is none."""
    if shutil.which("mpirun") is None:
        assert MUST_HAVE_MPI not in os.environ, "mpirun is not installed"
        pytest.skip("mpirun is not installed")
    options = ["--oversubscribe", "--host", f"localhost:{ranks}", "-n", str(ranks)]
    return ran(["mpirun", *options, sys.executable, *arguments])


def script(folder: Path, code: str) -> str:
    """Write a script and return its path."""
    path = folder / "job.py"
    path.write_text(HEAD + code, encoding="utf-8")
    return str(path)


def lines_of(rank: int, text: str) -> list[str]:
    """Return what a rank printed under `mithril launch`."""
    start = f"[{rank}] "
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
