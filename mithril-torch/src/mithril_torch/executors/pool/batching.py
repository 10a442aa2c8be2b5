"""Batches arrays, programs and deferred runs into the next message to the workers.

A batch is cleared only once the workers have answered, so a message that an interrupt cut off can
be sent again: applying a batch twice has the effect of applying it once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from mithril_torch.executors.pool.memory import Arena

KEEP = 1 << 28
"""Bytes of the arena that stay for the next message; what is beyond was needed once."""


class Batcher:
    """Rows for the next message; the bytes of new arrays are in the arena."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.puts: dict[int, list[Any]] = {}
        self.unloads: list[str] = []
        self.runs: list[list[Any]] = []
        self._referenced: set[int] = set()  # of runs, or in a message that may have been cut off
        self._drops: list[int] = []

    def put(self, number: int, parts: Sequence[np.ndarray[Any, Any] | None], dtype: str) -> None:
        """Copy the parts of an array to the arena, each array object once; None is no part.

        Raises:
            OSError: the arena cannot grow.
        """
        places: dict[int, tuple[int, list[int]] | None] = {id(None): None}
        for part in parts:
            if part is not None and id(part) not in places:
                start = self.arena.reserve(part.nbytes)
                if part.nbytes:
                    np.ndarray(part.shape, part.dtype, self.arena.buffer, start)[...] = part
                places[id(part)] = start, list(part.shape)
        rows = [places[id(part)] for part in parts]
        if len({id(part) for part in parts}) == 1:
            rows = rows[:1]
        self.puts[number] = [number, dtype, rows]

    def run(self, program: str, inputs: Sequence[int], first: int, count: int) -> None:
        """Add a run of a program, whose results have the numbers from `first` on."""
        self.runs.append([program, list(inputs), first, count])
        self._referenced.update(inputs)

    def drop(self, dropped: deque[int]) -> int:
        """Take over the numbers of dropped handles; what nobody was to see need not be sent.

        Returns:
            How many there were.
        """
        numbers = [dropped.popleft() for _ in range(len(dropped))]
        if self.puts:
            for number in numbers:
                if number in self._referenced or self.puts.pop(number, None) is None:
                    self._drops.append(number)
        else:
            self._drops += numbers
        return len(numbers)

    def fields(self) -> dict[str, Any]:
        """Return this part of the next message."""
        self._referenced.update(self.puts)
        rows: dict[str, Any] = {"drop": self._drops}
        if self.puts:
            rows["put"] = list(self.puts.values())
        if self.runs:
            rows["runs"] = self.runs
        if self.unloads:
            rows["unload"] = self.unloads
        return {"arena": self.arena.size, **rows}

    def clear(self) -> None:
        """Forget what the workers have now; what they wrote to the arena can still be read."""
        self.discard()
        self.unloads = []
        self._drops = []

    def discard(self) -> None:
        """Forget arrays and runs after an error; what workers shall let go of is told again."""
        self.puts = {}
        self.runs = []
        self._referenced = set()
        self.arena.top = 0

    def shrink(self) -> None:
        """Give back what the arena need not keep, once all is read and nothing waits."""
        if not self.puts:
            self.arena.shrink(KEEP)
