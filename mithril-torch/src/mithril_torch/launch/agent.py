"""torchrun as `mithril launch` starts it: `python -m mithril_torch.launch.agent`.

The options are torchrun's. It adds a rendezvous that listens on the loopback address only, shows
each line of a rank with the rank's number before it, and ends with the exit code of the rank that
failed first.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from mithril_torch.launch.command import LOOPBACK
from mithril_torch.launch.whole_lines import show_whole_lines

ADDRESS = "127.0.0.1"
FROM_SIGNAL = 128
"""What a shell adds to the number of a signal to make it an exit code."""
PATIENCE = 1
"""Seconds between SIGTERM and SIGKILL for the other ranks when one has failed."""


class Loopback(RendezvousHandler):
    """The meeting of one agent with itself; its store is what the ranks meet in."""

    def __init__(self, run_id: str) -> None:
        listener = socket.create_server((ADDRESS, 0))
        port = listener.getsockname()[1]
        store = TCPStore(
            ADDRESS, port, is_master=True, wait_for_workers=False, multi_tenant=True,
            master_listen_fd=listener.detach(),
        )  # fmt: skip
        self._run_id = run_id
        self._info = RendezvousInfo(
            PrefixStore(run_id, store), 0, 1, RendezvousStoreInfo(ADDRESS, port)
        )

    def get_backend(self) -> str:
        """Return the name of this rendezvous."""
        return LOOPBACK

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks use the agent's store instead of one that rank 0 keeps."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return where the ranks meet; the same at each restart."""
        return self._info

    def is_closed(self) -> bool:
        """Whether nobody may join any more."""
        return False

    def set_closed(self) -> None:
        """Do nothing: nobody else could join."""

    def num_nodes_waiting(self) -> int:
        """Return how many more machines want to join."""
        return 0

    def get_run_id(self) -> str:
        """Return the name of the job."""
        return self._run_id

    def shutdown(self) -> bool:
        """Return that there is nothing to end."""
        return True


def main(arguments: Sequence[str]) -> int:
    """Run torchrun and return the exit code.

    Args:
        arguments: of torchrun.
    """
    rendezvous_handler_registry.register(LOOPBACK, _loopback)
    show_whole_lines()
    os.environ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "[${rank}] "
    try:
        run.main(["--tee", "3", "--shutdown-timeout", str(PATIENCE), *arguments])
    except SignalException as stopped:
        return FROM_SIGNAL + stopped.sigval
    except ChildFailedError as failed:
        rank, failure = _first(failed)
        message = f"torchrun: rank {rank} {_fate(failure)}; all ranks were stopped"
        print(message, file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else FROM_SIGNAL - failure.exitcode
    return 0


def _loopback(parameters: RendezvousParameters) -> RendezvousHandler:
    return Loopback(parameters.run_id)


def _first(failed: ChildFailedError) -> tuple[int, ProcessFailure]:
    """Return the rank that failed first: one that was killed before those that missed it."""
    by_signal = [
        (failure.timestamp, rank)
        for rank, failure in failed.failures.items()
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
    ]
    if not by_signal:
        return failed.get_first_failure()
    _, rank = min(by_signal)
    return rank, failed.failures[rank]


def _fate(failure: ProcessFailure) -> str:
    code = failure.exitcode
    how = f"with exit code {code}" if code > 0 else f"by {signal.Signals(-code).name}"
    return f"ended {how} (pid {failure.pid})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
