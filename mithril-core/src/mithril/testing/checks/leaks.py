"""Leaks: what many runs leave behind, in this process and in those that a backend started."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import mithril as ml
from mithril import P
from mithril.testing.check import Check, Mismatch, Outcome, Status
from mithril.testing.levels import Level
from mithril.testing.target import Target

PROC = Path("/proc")
ELEMENTS = 1 << 20
RUNS, ROUNDS = 24, 3
ALLOWED = RUNS // 2
"""Arrays by whose size memory may grow: allocators keep some, each run that leaks adds one."""


def list_leak_checks() -> Iterator[Check]:
    """Yield the checks of memory and of handles."""
    yield Check("leaks", "memory", check_memory)
    yield Check("leaks", "file handles", check_handles)


def check_memory(target: Target, level: Level) -> Outcome:
    """Make and drop large arrays many times: the memory of all processes stays as it is."""
    if not PROC.is_dir():
        return Outcome(Status.skipped, "this system does not say how much memory a process has")
    backend = target.open_all()
    step = ml.jit(lambda x: x * 2.0 + 1.0)
    host = np.ones(ELEMENTS, np.float32)

    def run() -> None:
        x = backend.array(host, sharding=P(*backend.mesh.names[:1]))
        for _ in range(2):
            x = step(x)
        x.numpy()

    grown = _measure(run, _count_memory) / host.nbytes
    if grown > ALLOWED:
        raise Mismatch(f"{RUNS} runs leave {grown:.0f} arrays of {host.nbytes >> 20} MiB behind")
    return Outcome(note=f"{RUNS} runs")


def check_handles(target: Target, level: Level) -> Outcome:
    """Compile and run programs many times: as many files are open as before."""
    if not PROC.is_dir():
        return Outcome(Status.skipped, "this system does not say which files are open")
    backend = target.open()

    def run() -> None:
        compiled = ml.compile(ml.Linear(3), backend, shapes={"input": (2, 4)})
        compiled.evaluate(compiled.randomize_params(0), {"input": np.ones((2, 4), np.float32)})

    grown = _measure(run, _count_files)
    if grown >= RUNS / 2:
        raise Mismatch(f"{RUNS} runs leave {grown} files open")
    return Outcome(note=f"{RUNS} runs")


def _measure(run: Callable[[], None], count: Callable[[], int]) -> int:
    """Return by how much a count grows in many runs: the least of some rounds.

    Allocators take and give back memory as it suits them, so that one round may show some more.
    """
    grown = []
    for _ in range(ROUNDS):
        for _ in range(RUNS // 3):
            run()
        gc.collect()
        before = count()
        for _ in range(RUNS):
            run()
        gc.collect()
        grown.append(count() - before)
    return min(grown)


def _count_memory() -> int:
    """Return the bytes that this process and its children have in memory."""
    pages = sum(_read_pages(process) for process in [os.getpid(), *_list_children()])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _read_pages(process: int) -> int:
    try:
        return int((PROC / str(process) / "statm").read_text().split()[1])
    except (OSError, IndexError):  # it has ended
        return 0


def _list_children() -> list[int]:
    """Return the processes that this one has started."""
    found = []
    for path in PROC.glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        if int(parent) == os.getpid():
            found.append(int(path.parent.name))
    return found


def _count_files() -> int:
    return len(list((PROC / "self/fd").iterdir()))
