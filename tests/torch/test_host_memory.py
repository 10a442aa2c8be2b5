"""Memory that is freed stays with the process, unless users tell glibc otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import mithril as ml
import mithril.numpy as mnp
import pytest
from mithril_torch.executors.host_memory import MALLOC_VARIABLES

from tests.torch.pool.programs import children_of

FAULTS = """
import resource, torch
import mithril as ml

{before}
def faults():
    blocks = [torch.ones(1 << 20) for _ in range(16)]  # of 4 MiB
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

faults()
first = faults()
print(faults() - first)
"""


def count_faults(before: str, **settings: str) -> int:
    """Return the page faults of a process that takes and frees 64 MiB, once it has done so twice."""
    environment = {name: x for name, x in os.environ.items() if name not in MALLOC_VARIABLES}
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS.format(before=before)],
        env={**environment, **settings}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return int(ran.stdout)


@pytest.mark.parametrize("mesh", ["", "ml.Mesh(data=2), executor='lockstep', "])
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_what_is_freed_is_used_again(mesh: str) -> None:
    opened = f"ml.TorchBackend({mesh}device='cpu')"
    assert count_faults(opened) < 2_000
    assert count_faults(opened, MALLOC_TRIM_THRESHOLD_="131072") > 10_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_workers_use_it_again() -> None:
    backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu")
    wave = ml.jit(lambda x: mnp.sin(mnp.cos(mnp.exp(x))).sum(), backend=backend)
    x = backend.ones(1 << 21, sharding=ml.P("data"))  # three results of 4 MiB a worker

    def faults() -> int:
        wave(x).item()
        return sum(map(count_faults_of, children_of(os.getpid())))

    counts = [faults() for _ in range(8)]  # of which the first find a place for each size
    assert min(after - before for before, after in pairwise(counts)) < 1_000  # of 6,000 pages


def count_faults_of(pid: str) -> int:
    """Return the page faults of a process so far: the tenth field of its `stat`, proc(5)."""
    fields = (Path("/proc") / pid / "stat").read_text().rpartition(")")[2].split()
    return int(fields[7])
