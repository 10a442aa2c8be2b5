"""Runs files that programs were written to, where neither Mithril nor NumPy can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

import torch

from tests.folders import session_folder

LIMIT = 150
BOOT = """
import sys
sys.path.append(sys.argv.pop(1))
sys.argv.pop(0)
for name in ("mithril", "mithril_torch", "numpy"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(f"{name} is there")
import runpy
"""
SCRIPT = f"{BOOT}runpy.run_path(sys.argv[0], run_name='__main__')"
VICTIM = f"""{BOOT}
import os
if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
    def watch(frame, event, argument):
        code = frame.f_code
        if (event, code.co_name, code.co_filename) == ("call", "all_reduce", sys.argv[0]):
            os.kill(os.getpid(), 9)
    sys.setprofile(watch)
runpy.run_path(sys.argv[0], run_name='__main__')
from pathlib import Path
names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
print("threads of groups:", sum("gloo" in name for name in names))
"""
"""Rank 1 of the first attempt is killed where it should exchange data."""


@cache
def torch_alone() -> str:
    """Return a folder with the packages that are installed here, without Mithril and NumPy."""
    folder = session_folder("torch-alone")
    for package in Path(torch.__file__).parent.parent.iterdir():
        if not package.name.lower().startswith(("mithril", "_editable", "__editable", "numpy")):
            (folder / package.name).symlink_to(package)
    return str(folder)


def run_alone(*arguments: str, ranks: int = 1, boot: str = SCRIPT) -> CompletedProcess[str]:
    """Run a file with arguments in an isolated Python, or in one a rank under torchrun."""
    python = [sys.executable, "-I", "-S", "-W", "ignore", "-c", boot, torch_alone()]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--max-restarts=1"]
    meeting = [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        "--local-addr",
        "127.0.0.1",
    ]
    under = [*launcher, *meeting, "--nproc-per-node", str(ranks)] if ranks > 1 else []
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "PYTHONPATH")}
    with TemporaryDirectory() as folder:  # torchrun leaves files behind
        process = subprocess.Popen(
            [*under, *python, *arguments],
            env=kept | {"OMP_NUM_THREADS": "1", "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then stops its ranks
            output, errors = process.communicate()
            raise AssertionError(f"not done after {LIMIT} s: {output}{errors}") from None
    return CompletedProcess(process.args, process.returncode, output, errors)
