"""Starts scripts in several processes, as users of `mithril launch` and of mpirun do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial

import pytest

from tests.runtime.scripts import ROOT, launched, ran

SPMD = str(ROOT / "tests/mlx/spmd.py")
MUST_HAVE_MPI = "MITHRIL_TESTS_NEED_MPI"
"""Set where a missing MPI is a failure, as in CI."""
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
launch = partial(launched, "mlx", PYTHONPATH=str(ROOT))


def mpirun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mpirun, on this machine only; skip the test where there is none."""
    if shutil.which("mpirun") is None:
        assert MUST_HAVE_MPI not in os.environ, "mpirun is not installed"
        pytest.skip("mpirun is not installed")
    options = ["--oversubscribe", "--host", f"localhost:{ranks}", "-n", str(ranks)]
    found_at = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return ran(["mpirun", *options, sys.executable, *arguments], PYTHONPATH=found_at, **AS_ROOT)
