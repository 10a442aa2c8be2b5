"""Source texts for the pool, what they mean to a user, and a look at what the system has of it."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mithril_torch.executors.pool.controller import Pool

WAIT = 3.0
"""The timeout of pools whose workers are stopped."""

SUM = """
import torch.distributed as dist

def run(inputs):
    step[0] = 1
    total = inputs[0].clone()
    dist.all_reduce(total)
    return [total]
"""

FAULT = """
import os, signal, time
import torch.distributed as dist

def run(inputs):
    step[0] = 1
    dist.all_reduce(torch.ones(1000))
    step[0] = 2
    {fault}
    dist.all_reduce(torch.ones(1000))
    step[0] = 3
    return []
"""
"""What goes wrong goes wrong in line 9, while the other ranks are in the second collective."""

LOOP = """
import time
import torch.distributed as dist

def run(inputs):
    end = time.monotonic() + {seconds}
    number = 0
    going = torch.ones(1)
    while going:
        number += 1
        step[0] = number
        dist.all_reduce(torch.ones(50_000))
        going.fill_(time.monotonic() < end)
        dist.broadcast(going, 0)
    return []
"""


class SourceMap:
    """Names of steps and lines as a backend would give them."""

    def step(self, number: int) -> str:
        return f"step {number} (all_reduce of weight {number})"

    def line(self, number: int) -> str:
        return f"line {number} (layer {number})"


@dataclass(frozen=True)
class System:
    """What this process has: descriptors, children, threads; and files of pools."""

    descriptors: int
    children: frozenset[str]
    threads: int
    files: frozenset[str]


def children_of(process: int) -> list[str]:
    """Return the numbers of the children of a process, ended ones included."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            found += (task / "children").read_text().split()
    return found


def system() -> System:
    children = children_of(os.getpid())
    files = Path(tempfile.gettempdir()).glob("mithril-pool*")
    return System(
        descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        children=frozenset(children),
        threads=sum(thread.name == "mithril workers" for thread in threading.enumerate()),
        files=frozenset(map(str, files)),
    )


def is_gone(pid: int) -> bool:
    """Whether a process that is no child of this one has ended."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(is_so: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait until something is so; return whether it came to be."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def load(pool: Pool, source: str) -> str:
    """Load a program under a name of its own, and return the name."""
    name = f"program {time.monotonic_ns()}"
    pool.load(name, source, SourceMap())
    return name
