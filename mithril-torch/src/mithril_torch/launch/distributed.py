"""The processes of a job that something else started: torchrun, `mithril launch`, a batch system.

They find their place in the variables that all of these set, and meet in PyTorch's process group.
Each attempt of a job that torchrun restarts meets under a name of its own, so that it does not read
addresses of processes that are gone. On one machine data is exchanged over the loopback device;
where nothing says how many processes a machine has, that is so if they meet at a loopback address.
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

from mithril_torch.launch.loopback import LOOPBACK, is_loopback
from mithril_torch.program.runtime_library.groups import release_groups

LAST_PORT = 65535


@dataclass(frozen=True)
class Job:
    """This process's place in a job.

    Args:
        rank: its number among all processes.
        size: how many there are.
        local_rank: its number among those of this machine.
        local_size: how many this machine has.
        attempt: how often the job was restarted.
        is_on_loopback: whether no machine but this one is part of it.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    attempt: int
    is_on_loopback: bool


def job_of(environment: Mapping[str, str]) -> Job | None:
    """Return the place that the environment gives this process; None outside a job.

    Raises:
        BackendError: a variable is no number, or one that cannot be.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    rank, size = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    if rank >= size:
        raise BackendError(
            f"environment variable RANK={rank} counts from 0, and WORLD_SIZE={size}; give each "
            f"process a number of its own below that"
        )
    port = _number(environment, "MASTER_PORT", 0)
    if port > LAST_PORT:
        raise BackendError(
            f"environment variable MASTER_PORT={port} is no port; the last one is {LAST_PORT}; set "
            f"one that is free"
        )
    here = _number(environment, "LOCAL_WORLD_SIZE", size)
    is_told = "LOCAL_WORLD_SIZE" in environment
    return Job(
        rank,
        size,
        _number(environment, "LOCAL_RANK", rank),
        here,
        _number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        here == size if is_told else is_loopback(environment.get("MASTER_ADDR", "")),
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
    if job.is_on_loopback:
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
    listener = socket.create_server((host if job.is_on_loopback else "", port))
    return TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
