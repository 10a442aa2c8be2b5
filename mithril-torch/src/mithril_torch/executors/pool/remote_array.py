"""Handles of arrays that the workers hold, one part a rank.

Arrays whose handles were dropped are freed in the workers with the next message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mithril_torch.executors.pool.messages import SMALL


@dataclass(frozen=True, slots=True)
class Spec:
    """What one part is: PyTorch's name of its type, its shape, its size."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of one part, and what they are."""

    spec: Spec
    data: NDArray[np.uint8]


class Layout:
    """The specs of all results of a program on one rank, and where the small ones are.

    A result that is on other ranks only has none.
    """

    def __init__(self, specs: Sequence[Spec | None]) -> None:
        self.specs = tuple(specs)
        self.starts: list[int | None] = []
        at = 0
        for spec in specs:
            is_small = spec is not None and spec.nbytes <= SMALL
            self.starts.append(at if is_small else None)
            at += spec.nbytes if spec is not None and is_small else 0


class Results:
    """What the workers told about the results of one run: layouts and payloads by rank."""

    __slots__ = ("layouts", "payloads")

    def __init__(self) -> None:
        self.layouts: Sequence[Layout] = ()
        self.payloads: Sequence[bytes] = ()


class Owner(Protocol):
    """Whose array it is: the pool, which is told when nobody holds it any more."""

    dropped: deque[int]

    @property
    def size(self) -> int:
        """How many workers it has."""


class RemoteArray:
    """An array in the workers: `id` is its number there."""

    __slots__ = ("__weakref__", "_index", "_results", "id", "pool")

    def __init__(self, pool: Owner, number: int, results: Results, index: int) -> None:
        self.pool = pool
        self.id = number
        self._results = results
        self._index = index

    def __del__(self) -> None:
        # Anything more could meet an exchange of this thread that is under way.
        self.pool.dropped.append(self.id)

    def spec(self, rank: int) -> Spec:
        """Return what the part of a rank is."""
        found = self._layout(rank).specs[self._index]
        assert found is not None, f"array {self.id} has no part on rank {rank}"
        return found

    def small(self, rank: int) -> Part | None:
        """Return the part of a rank if it came with the answer."""
        layout = self._layout(rank)
        start = layout.starts[self._index]
        if start is None or not self._results.payloads:
            return None
        spec = self.spec(rank)
        payload = self._results.payloads[rank]
        return Part(spec, np.frombuffer(payload, np.uint8, spec.nbytes, start))

    def _layout(self, rank: int) -> Layout:
        layouts = self._results.layouts
        # An array that is the same everywhere has one layout.
        return layouts[rank] if len(layouts) > 1 else layouts[0]
