"""The store in which PyTorch's processes have met, as the store of a job.

Gloo and NCCL find their peers through it; texts in it meet none of their exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep

import torch.distributed as dist
from mithril.spi import BackendError, JobStore
from torch._C._distributed_c10d import Store

SHORTEST, LONGEST = 0.001, 0.1
"""Seconds between two looks: longer ones, the longer nothing is there."""


def open_job_store(timeout: float, size: int) -> JobStore | None:
    """Return the store of this job; None where its process group has ended.

    Args:
        timeout: seconds for which a process waits for the others.
        size: how many processes there are, each with one device.
    """
    if not dist.is_initialized():
        return None
    store = dist.distributed_c10d._get_default_store()

    def set_text(key: str, text: str) -> None:
        with _telling():
            store.set(key, text)

    def get_text(key: str, seconds: float) -> str | None:
        with _telling():
            if not _is_there_in_time(store, key, seconds):
                return None
            return store.get(key).decode()

    return JobStore(set_text, get_text, timeout, tuple(range(size)))


def _is_there_in_time(store: Store, key: str, seconds: float) -> bool:
    """Return whether somebody sets a key; `Store.wait` would print warnings where nobody does."""
    until, pause = monotonic() + seconds, SHORTEST
    while not store.check([key]):
        if monotonic() >= until:
            return False
        sleep(pause)
        pause = min(2 * pause, LONGEST)
    return True


@contextmanager
def _telling() -> Iterator[None]:
    """Tell of a store that is gone in the user's words."""
    try:
        yield
    except RuntimeError as error:
        raise BackendError(
            f"store in which the processes have met is gone: {error}; see what the process that "
            f"keeps it says, and start the job again"
        ) from error


__all__ = ["open_job_store"]
