"""Starts scripts in several processes, as users of torchrun and of `mithril launch` do."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.runtime import scripts
from tests.runtime.scripts import launched, ran

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
launch = partial(launched, "torch")


def script(folder: Path, code: str) -> str:
    """Write a script that imports torch, too, and return its path."""
    return scripts.script(folder, code, "torch")


def torchrun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run torchrun as it is, a script and its arguments last."""
    with TemporaryDirectory() as folder:  # torchrun leaves files behind
        return ran([*TORCHRUN, "--nproc-per-node", str(ranks), *arguments], TMPDIR=folder)
