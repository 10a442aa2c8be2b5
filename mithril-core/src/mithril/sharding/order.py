"""The order in which variables are eliminated: the one whose elimination makes the least table.

A variable's size is that of the table its elimination adds up: the product of the domains of the
variable and of its neighbours, which it shares a table with. The queue holds a pair (size,
variable) for each size a variable ever had; one that is no longer true is passed over.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence


class Order:
    """The variables that are left, and their neighbours.

    Args:
        domains: number of values of each variable.
        scopes: the variables of each table.
    """

    def __init__(self, domains: Sequence[int], scopes: Iterable[Sequence[int]]) -> None:
        self.compared = 0
        self._domains = domains
        self._neighbours: dict[int, set[int]] = {}
        for scope in scopes:
            for variable in scope:
                self._neighbours.setdefault(variable, set()).update(scope)
        for variable, neighbours in self._neighbours.items():
            neighbours.discard(variable)
        self._sizes = {variable: self._compute_size(variable) for variable in self._neighbours}
        self._queue = [(size, variable) for variable, size in self._sizes.items()]
        heapq.heapify(self._queue)

    def find_cheapest(self) -> tuple[int, int] | None:
        """Return the variable whose elimination makes the smallest table, and that size."""
        while self._queue:
            size, variable = heapq.heappop(self._queue)
            self.compared += 1
            if self._sizes.get(variable) == size:
                return variable, size
        return None

    def find_neighbours(self, variable: int) -> frozenset[int] | None:
        """Return the neighbours of a variable; None if it is in no table, or is taken out."""
        found = self._neighbours.get(variable)
        return None if found is None else frozenset(found)

    def remove(self, variable: int) -> set[int]:
        """Take a variable out; return its neighbours."""
        del self._sizes[variable]
        neighbours = self._neighbours.pop(variable)
        for neighbour in neighbours:
            self._neighbours[neighbour].discard(variable)
        return neighbours

    def join(self, variables: Iterable[int]) -> None:
        """Make variables neighbours of one another."""
        for one in variables:
            self._neighbours[one].update(variables)
            self._neighbours[one].discard(one)
            self._measure(one)

    def surround(self, variable: int, neighbours: set[int]) -> None:
        """Say anew which neighbours a variable has."""
        self._neighbours[variable] = neighbours
        self._measure(variable)

    def _measure(self, variable: int) -> None:
        size = self._compute_size(variable)
        if size != self._sizes[variable]:
            self._sizes[variable] = size
            heapq.heappush(self._queue, (size, variable))

    def _compute_size(self, variable: int) -> int:
        others = (self._domains[other] for other in self._neighbours[variable])
        return self._domains[variable] * math.prod(others)


def outgrows(domains: Sequence[int], scopes: Iterable[Sequence[int]], cap: int) -> bool:
    """Return whether an elimination would add up a table of more entries than a cap.

    Args:
        domains: number of values of each variable.
        scopes: the variables of each table.
        cap: the most entries.
    """
    order = Order(domains, scopes)
    while (cheapest := order.find_cheapest()) is not None:
        variable, size = cheapest
        if size > cap:
            return True
        order.join(order.remove(variable))
    return False
