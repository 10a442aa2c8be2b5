"""What `mithril launch` starts for PyTorch: one command, the agent that is torchrun.

The agent starts the processes of this machine, and again all of them where it may restart. This
module imports no framework.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mithril.spi import Command, LaunchRequest

LOOPBACK = "loopback"
"""The rendezvous of a job on one machine, which the agent registers."""


def commands(request: LaunchRequest) -> Sequence[Command]:
    """Return the command that starts the processes of this machine."""
    options = ["--nproc-per-node", str(request.processes), *_meeting(request)]
    if request.folder:
        options += ["--log-dir", request.folder]
    argv = (sys.executable, "-m", "mithril_torch.launch.agent", *options, *request.argv[1:])
    threads = max(1, (os.cpu_count() or 1) // request.processes)
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    return [Command(argv, environment)]


def _meeting(request: LaunchRequest) -> list[str]:
    """Return the options that say where the processes meet."""
    if request.coordinator is None:
        return ["--rdzv-backend", LOOPBACK, "--rdzv-endpoint", "localhost"]  # not read
    return [
        "--nnodes", str(request.nodes),
        "--node-rank", str(request.node_rank),
        "--rdzv-backend", "static",
        "--rdzv-endpoint", request.coordinator,
    ]  # fmt: skip
