"""What processes of a job say, told to all of them through their `JobStore`, in bounded time.

The first of them collects what each says and leaves all of it for the others, so that a store is
asked a few times a process. Who waits for longer than the store's timeout gives up, and so do the
others then: they come to the next round together, or to none.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep
from zlib import crc32

from mithril.engine.job_store import JobStore
from mithril.errors import BackendError

SLICE = 1.0
"""Seconds for which a store is asked at once: between two, Ctrl-C is heard and ends are seen."""
LISTED = 8
"""How many numbers of processes a message lists."""
GIVEN_UP = ""
"""What a process says that came, and does not wait any more."""

_rounds: Counter[tuple[str, int, tuple[int, ...]]] = Counter()
"""How often a process has met which ones, by the store's name and its own number there."""
_announced: set[tuple[str, int]] = set()
"""The stores that are told when this process ends, and as which one."""


def gather(
    store: JobStore, name: str, own: int, members: Sequence[int], text: str
) -> dict[int, str]:
    """Return what each of some processes says, once all of them have come here.

    Args:
        store: of the job.
        name: of the store, the same in all of them.
        own: the number of this process.
        members: the numbers of all that come, this one among them, in order.
        text: what this one says; not empty.

    Raises:
        BackendError: not all came before the timeout, one has ended, or the store is gone.
    """
    meeting = name, own, tuple(members)
    topic = f"mithril/{name}/{crc32(repr(meeting[2]).encode())}/{_rounds[meeting]}"
    _rounds[meeting] += 1
    store.set(f"{topic}/{own}", text)
    deadline = monotonic() + store.timeout
    collect = _collect if own == members[0] else _read
    found = collect(store, name, topic, members, deadline)
    texts = {member: said for member, said in found.items() if said}
    if len(texts) == len(members):
        return texts
    store.set(f"{topic}/{own}", GIVEN_UP)
    absent = [member for member in members if member != own and found[member] is None]
    if not absent:
        raise BackendError("they came earlier, and waited for their timeout")
    if ended := [member for member in absent if _has_ended(store, name, member)]:
        sleep(SLICE)  # it may have an exit code that is to be seen first
        raise BackendError(f"{list_processes(ended)} ended without")
    raise BackendError(f"{list_processes(absent)} did not come within timeout={store.timeout:g} s")


def _collect(
    store: JobStore, name: str, topic: str, members: Sequence[int], deadline: float
) -> dict[int, str | None]:
    """Return what each says, None for who did not come, and leave it for the others."""
    found: dict[int, str | None] = {}
    began = monotonic()
    for member in members:
        found[member] = _wait_for(store, name, member, f"{topic}/{member}", deadline)
        if not found[member]:
            deadline = monotonic()  # the others may be there
    if monotonic() - began > SLICE:  # who came early may have given up by now
        found = {member: store.get(f"{topic}/{member}", 0.0) for member in members}
    store.set(f"{topic}/all", json.dumps([*found.items()]))
    return found


def _read(
    store: JobStore, name: str, topic: str, members: Sequence[int], deadline: float
) -> dict[int, str | None]:
    """Return what the first process has collected; if it did not, who is there."""
    collected = _wait_for(store, name, members[0], f"{topic}/all", deadline)
    if collected:
        return dict(json.loads(collected))
    return {member: store.get(f"{topic}/{member}", 0.0) for member in members}


def _wait_for(store: JobStore, name: str, member: int, key: str, deadline: float) -> str | None:
    """Return what a process writes; None if it has ended, or has not written before a deadline."""
    while True:
        left = max(0.0, deadline - monotonic())
        text = store.get(key, min(left, SLICE))
        if text is not None or left == 0.0:
            return text
        if _has_ended(store, name, member):
            return store.get(key, 0.0)


def _has_ended(store: JobStore, name: str, member: int) -> bool:
    return store.get(_end_key(name, member), 0.0) is not None


def announce_end(store: JobStore, name: str, own: int) -> None:
    """Have others told when this process ends well, so that they do not wait for it.

    Whoever started the processes stops the others of one that fails, and names it: they must not
    fail before it has ended.

    Args:
        store: of the job.
        name: of the store, the same in all processes.
        own: the number of this one.
    """
    if (name, own) in _announced:
        return
    _announced.add((name, own))
    opened_by = os.getpid()

    def tell() -> None:
        is_fork = os.getpid() != opened_by
        if is_fork or getattr(sys, "last_value", None) is not None:
            return
        with suppress(BackendError):
            store.set(_end_key(name, own), "ended")

    atexit.register(tell)


def _end_key(name: str, member: int) -> str:
    return f"mithril/{name}/ended/{member}"


def list_processes(numbers: Sequence[int]) -> str:
    """Return numbers of processes as a message lists them.

    >>> list_processes([2]), list_processes(range(10))
    ('process 2', 'processes 0, 1, 2, 3, 4, 5, 6, 7 and 2 more')
    """
    shown = ", ".join(map(str, numbers[:LISTED]))
    more = f" and {len(numbers) - LISTED} more" if len(numbers) > LISTED else ""
    return f"process{'es' if len(numbers) > 1 else ''} {shown}{more}"


__all__ = ["announce_end", "gather", "list_processes"]
