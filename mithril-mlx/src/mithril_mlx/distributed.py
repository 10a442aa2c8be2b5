"""The processes of a job that something else started: `mithril launch`, `mlx.launch`, `mpirun`.

They find their place in the variables that these set, and meet in MLX's own groups. What a library
of MLX can do is declared as a `Transport`: the ring knows all_reduce and all_gather among all
processes and messages between neighbours, MPI has groups and messages between any two, JACCL has
reduce_scatter.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
from mithril.spi import BackendError, Transport
from mithril.spi.ops import ReduceScatter

from mithril_mlx.job_store import Texts, open_texts

STARTED_BY = {
    "jaccl": ("MLX_RANK", "MLX_IBV_DEVICES"),
    "ring": ("MLX_RANK", "MLX_HOSTFILE"),
    "mpi": ("OMPI_COMM_WORLD_RANK",),
}
"""The variables by which a process knows that it is part of a job, by library."""
HOW = {
    "ring": "mithril launch --backend mlx -n 2, or mlx.launch --backend ring",
    "mpi": "mpirun -n 2, or mlx.launch --backend mpi",
    "jaccl": "mlx.launch --backend jaccl",
}
Ranks = tuple[tuple[int, ...], ...]
"""All processes, cut into groups."""


def library_of(environment: Mapping[str, str]) -> str | None:
    """Return the library that the job of this process uses; None outside a job.

    >>> library_of({"OMPI_COMM_WORLD_RANK": "1"})
    'mpi'
    """
    for library, variables in STARTED_BY.items():
        if all(name in environment for name in variables):
            return library
    return None


@dataclass(eq=False)
class Job:
    """This process's place in a job.

    Args:
        library: what exchanges data.
        world: all processes.
        texts: what they tell each other beside collectives; None where rank 0 is out of reach.
    """

    library: str
    world: mx.distributed.Group
    texts: Texts | None = None

    @property
    def rank(self) -> int:
        """The number of this process."""
        found: int = self.world.rank()
        return found

    @property
    def transport(self) -> Transport:
        """What the library can do."""
        return Transport(
            self.library,
            self.world.size(),
            groups=self.library == "mpi",
            more=frozenset({ReduceScatter.name} if self.library == "jaccl" else ()),
            reaches_all=self.library == "mpi" or (self.library == "jaccl" and not _is_jaccl_ring()),
        )

    def group(self, cut: Ranks) -> mx.distributed.Group:
        """Return the group of this process where all are cut into groups.

        Every process has to ask for the same cuts in the same order. Members are numbered in the
        order in which they are given.
        """
        if cut == (tuple(range(self.world.size())),):
            return self.world
        key = (self.library, cut)
        if key not in _groups:
            color, members = next((i, ranks) for i, ranks in enumerate(cut) if self.rank in ranks)
            _groups[key] = self.world.split(color, members.index(self.rank))
        return _groups[key]


_groups: dict[tuple[str, Ranks], mx.distributed.Group] = {}


def join(library: str) -> Job:
    """Meet the other processes of the job.

    Raises:
        BackendError: MLX lacks the library, or the others cannot be reached.
    """
    try:
        world = mx.distributed.init(strict=True, backend=library)
    except RuntimeError as error:
        raise BackendError(
            f"distributed_backend='{library}' cannot join a job{_hosts()}: {error}; start the "
            f"script by {HOW[library]}"
        ) from error
    if library == "mpi":
        _leave_on_error()
    return Job(library, world, open_texts(library, world))


def _is_jaccl_ring() -> bool:
    """Whether the machines of JACCL are cabled as a ring, and not each with each."""
    return "MLX_JACCL_RING" in os.environ


def _hosts() -> str:
    file = os.environ.get("MLX_HOSTFILE")
    return "" if file is None else f" (MLX_HOSTFILE={file})"


@cache
def _leave_on_error() -> None:
    """Let a process that ends by an error end at once, so that mpirun stops the others.

    In its ordinary end MPI waits for all processes, and they for what this one shall send.
    """
    report = sys.excepthook

    def leave(*error: Any) -> None:
        report(*error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    sys.excepthook = leave


def _forget() -> None:
    """Let go of MPI's groups while MPI is still there: it calls their later end a crash."""
    _groups.clear()
    gc.collect()


atexit.register(_forget)
