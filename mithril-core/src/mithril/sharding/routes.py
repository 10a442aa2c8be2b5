"""The cheapest path of one pair of shardings for any number of bytes, from few searches.

What a path takes is a start-up and so much a byte, in the alpha-beta model that prices collectives.
Of all paths the least is then concave in the bytes: it is nowhere below a straight line between two
of its points. A path that is the cheapest for two numbers of bytes is so for all in between. Of two
that take as long but for how picoseconds are rounded it may be the one with more collectives.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from mithril.sharding.alike import Typical
from mithril.sharding.reshard import Path, Resharder
from mithril.types import DType, TensorType

FAR = 2**20
"""So many times as large as what is asked for is what is looked for first, if it is the largest."""


class Routes:
    """The cheapest paths of a pair, by the size of the last dimension.

    Args:
        resharder: finds the paths.
        typical: the pair, and a tensor whose last dimension nothing splits.
        dtype: of the elements.
    """

    def __init__(self, resharder: Resharder, typical: Typical, dtype: DType) -> None:
        start, goal, self._least = typical
        self._resharder, self._dtype = resharder, dtype
        self._journey = resharder.begin(start, goal, self._least)
        self._found: dict[int, Path | None] = {}
        self._sizes: list[int] = []

    def find(self, nbytes: int) -> Path | None:
        """Return the cheapest path, None if there is none without what is refused.

        Args:
            nbytes: of the whole tensor.

        Raises:
            PlanError: there would be none with that, either.
        """
        size = nbytes // self._dtype.itemsize // self._least.size
        if size not in self._found:
            if self._resharder.has_refusals:  # which depend on the bytes
                return self._search(size)
            self._reach(size)
        if size not in self._found:
            self._found[size] = self._follow(size) or self._search(size)
        return self._found[size]

    def _reach(self, size: int) -> None:
        """Have something known on both sides of a size."""
        if self._sizes and size > self._sizes[-1]:
            self._search(size * FAR)
        elif self._sizes and size < self._sizes[0]:
            self._search(1)

    def _follow(self, size: int) -> Path | None:
        """Return the path that is the cheapest for less and for more, if it is one."""
        at = bisect_left(self._sizes, size)
        if not 0 < at < len(self._sizes):
            return None
        less, more = (self._found[known] for known in self._sizes[at - 1 : at + 1])
        if less is None or more is None or less.moves is not more.moves:
            return None
        return self._resharder.follow(less, self._journey, self._type(size))

    def _search(self, size: int) -> Path | None:
        path = self._resharder.find_path(self._journey, self._type(size))
        self._found[size] = path
        insort(self._sizes, size)
        return path

    def _type(self, size: int) -> TensorType:
        return TensorType((*self._least.shape[:-1], size), self._dtype)


__all__ = ["Routes"]
