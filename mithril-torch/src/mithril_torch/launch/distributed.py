"""The processes of a job that something else started: torchrun, `mithril launch`, a batch system.

They find their place in the variables that all of these set, and meet in PyTorch's process group.
Each attempt of a job that torchrun restarts meets under a name of its own, so that it does not read
addresses of processes that are gone. On one machine data is exchanged over the loopback device.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from mithril.spi import BackendError
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from mithril_torch.program.runtime_library.groups import release_groups

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Job:
    """This process's place in a job.

    Args:
        rank: its number among all processes.
        size: how many there are.
        local_rank: its number among those of this machine.
        local_size: how many this machine has.
        attempt: how often the job was restarted.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    attempt: int


def job_of(environment: Mapping[str, str]) -> Job | None:
    """Return the place that the environment gives this process; None outside a job.

    Raises:
        BackendError: a variable is no number.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    rank, size = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    return Job(
        rank,
        size,
        _number(environment, "LOCAL_RANK", rank),
        _number(environment, "LOCAL_WORLD_SIZE", size),
        _number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal():
        raise BackendError(
            f"environment variable {name}='{text}' is no number; set it, or unset it"
        )
    return int(text)


def join(job: Job, library: str, timeout: float) -> None:
    """Meet the other processes, unless this one has a process group already.

    Args:
        job: this process's place.
        library: `gloo` or `nccl`.
        timeout: seconds to wait for others.

    Raises:
        BackendError: they cannot be reached.
    """
    if dist.is_initialized():
        atexit.register(_leave, ours=False)
        return
    if job.local_size == job.size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    if library == "nccl":
        torch.cuda.set_device(job.local_rank)
    limit = timedelta(seconds=timeout)
    try:
        store = PrefixStore(f"mithril/{job.attempt}", _store(job, limit))
        dist.init_process_group(
            library, store=store, rank=job.rank, world_size=job.size, timeout=limit
        )
        atexit.register(_leave, ours=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"rank {job.rank} of {job.size} cannot join the job; {error}; start it by torchrun or "
            f"mithril launch"
        ) from error


def _leave(ours: bool) -> None:
    """End process groups before the interpreter ends: their threads may not outlive that.

    Not after an error: groups wait for exchanges under way, to which the others may never come.
    """
    if getattr(sys, "last_value", None) is not None:
        return
    release_groups()
    if ours and dist.is_initialized():
        dist.destroy_process_group()


def _store(job: Job, timeout: timedelta) -> Store:
    """Return the store of the agent that started the job; otherwise rank 0 keeps one."""
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError):
        raise ValueError(
            "MASTER_ADDR and MASTER_PORT do not say where the processes meet"
        ) from None
    kept_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if kept_by_agent or job.rank != 0:
        return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    # By itself a store listens everywhere.
    listener = socket.create_server((host if job.local_size == job.size else "", port))
    return TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
