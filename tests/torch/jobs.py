"""Starts scripts in several processes, as users of torchrun and of `mithril launch` do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.runtime.training import MITHRIL

ROOT = Path(__file__).parent.parent.parent
HEAD = "import mithril as ml, numpy as np, os, sys, torch\nfrom mithril import P\n"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
LIMIT = 240


def ran(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with one thread a process, and return how it went."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def torchrun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run torchrun as it is, a script and its arguments last."""
    return ran([*TORCHRUN, "--nproc-per-node", str(ranks), *arguments])


def launch(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `mithril launch`, which shows before each line which rank it is of."""
    return ran([MITHRIL, "launch", "--backend", "torch", "-n", str(ranks), *arguments])


def script(folder: Path, code: str) -> str:
    """Write a script and return its path."""
    path = folder / "job.py"
    path.write_text(HEAD + code, encoding="utf-8")
    return str(path)


def lines_of(rank: int, text: str) -> list[str]:
    """Return what a rank printed under `mithril launch`."""
    start = f"[{rank}] "
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def losses(text: str) -> list[float]:
    """Return the losses that the example printed."""
    return [float(loss) for loss in re.findall(r"step \d+: loss (\d+\.\d{6})", text)]
