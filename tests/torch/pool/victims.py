"""Pools whose workers are going to fail, and a look at whether anything is left of them."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from mithril.errors import BackendError
from mithril_torch.executors.pool.controller import Pool

from tests.runtime.jobs import crowding
from tests.torch.pool.programs import SUM, WAIT, System, load, system, until

SIZE = 3
SOON = 1.0
"""Seconds from a fault to its error."""
REPETITIONS = pytest.mark.parametrize(
    "chance",
    [pytest.param(n, marks=[pytest.mark.slow] if n else [], id=f"{n}") for n in range(20)],
)


@dataclass
class Victim:
    """A pool, and what this process had before there was one."""

    pool: Pool
    before: System
    struck: list[float] = field(default_factory=list)
    """When the fault happened."""

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        self.struck.append(time.monotonic())
        os.kill(self.pool.pids[rank], number)

    def at(self, is_time: Callable[[], bool], strike: Callable[[], None]) -> threading.Thread:
        """Strike at a time, from another thread."""

        def wait() -> None:
            until(is_time, 20)
            strike()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread

    def step(self, rank: int) -> int:
        return self.pool._connection.workers.progress.read(rank)[0]

    def activity(self, rank: int) -> int:
        return self.pool._connection.workers.progress.read(rank)[1]

    @contextmanager
    def ends(self, pattern: str, within: float = SOON) -> Iterator[None]:
        """What is run here ends with an error like this, soon, and leaves nothing behind."""
        handle = self.pool.put([np.ones(3)])
        started = time.monotonic()
        with pytest.raises(BackendError, match=pattern) as caught:
            yield
        seconds = time.monotonic() - max(self.struck, default=started)
        assert seconds < within * crowding(), f"{seconds:.2f} s"
        assert not self.pool.is_alive
        with pytest.raises(BackendError, match=r"^Worker pool of 3 has ended, and its arrays with"):
            self.pool.fetch(handle, 0)
        assert str(caught.value) in str(self.pool._connection.end_reason)
        self.is_clean()
        assert works(victim().pool)

    def is_clean(self) -> None:
        """Nothing of the pool is left in this process or in the system."""
        assert until(lambda: system() == self.before), (system(), self.before)


_now: list[Victim] = []


def victim() -> Victim:
    """Return three workers; the same as before unless these were ended."""
    if not _now or not _now[0].pool.is_alive:
        before = system()
        _now[:] = [Victim(Pool.of(SIZE, timeout=WAIT), before)]
    _now[0].struck.clear()
    return _now[0]


def works(pool: Pool) -> bool:
    """Whether a pool gives right numbers, in several exchanges."""
    program = load(pool, SUM)
    handle = pool.put([np.full(100, rank) for rank in range(pool.size)])
    [total] = pool.run(program, [handle], 1)
    pool.unload(program)
    parts = pool.fetch_all([(total, rank) for rank in range(pool.size)])
    right = sum(range(pool.size))
    return all((part.data.view(np.int64) == right).all() for part in parts)


def dice(chance: int) -> random.Random:
    """Return chance that is the same in every session."""
    return random.Random(chance)
