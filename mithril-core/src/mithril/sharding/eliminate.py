"""Min-sum variable elimination over cost tables: exact minimisation of a sum of small tables.

Each step takes the variable whose elimination makes the smallest table, adds the tables it occurs
in, minimises over it and remembers the best value for every setting of its neighbours. Reading the
remembered values backwards gives the minimiser (Dechter, "Bucket elimination", 1999). Should a
table outgrow the cap, that variable is fixed to its locally best value instead and the result is no
longer proved exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

TABLE_CAP = 4_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs over some variables: one array dimension per variable."""

    variables: tuple[int, ...]
    costs: np.ndarray


def minimise(
    domains: Sequence[int], tables: Iterable[Table], cap: int = TABLE_CAP
) -> tuple[dict[int, int], float, bool]:
    """Return the minimising value of each variable, the minimum, and whether it is exact.

    Args:
        domains: number of values of each variable.
        tables: cost tables; their sum is minimised. `inf` forbids a combination.
        cap: largest table, in entries.

    Variables that occur in no table get value 0.
    """
    state = _State(domains, tables)
    trail: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    is_exact = True
    while state.remaining:
        variable, size = state.cheapest()
        if size > cap:
            state.fix(variable)
            is_exact = False
            trail.append((variable, (), np.array(state.fixed[variable])))
            continue
        trail.append((variable, *state.eliminate(variable)))
    picked: dict[int, int] = {}
    for variable, neighbours, best in reversed(trail):
        picked[variable] = int(best[tuple(picked[n] for n in neighbours)])
    return picked, state.constant, is_exact


class _State:
    """The tables not yet eliminated, indexed by variable."""

    def __init__(self, domains: Sequence[int], tables: Iterable[Table]) -> None:
        self.constant = 0.0
        self.fixed: dict[int, int] = {}
        self._domains = domains
        self._tables: dict[int, set[Table]] = {}
        self._sizes: dict[int, int] = {}
        for table in tables:
            self._insert(table)
        self.remaining = set(self._tables)
        for variable in self.remaining:
            self._measure(variable)

    def cheapest(self) -> tuple[int, int]:
        """Return the variable whose elimination makes the smallest table, and that size."""
        variable = min(self.remaining, key=lambda v: (self._sizes[v], v))
        return variable, self._sizes[variable]

    def eliminate(self, variable: int) -> tuple[tuple[int, ...], np.ndarray]:
        """Minimise over a variable; return its neighbours and its best value for their settings."""
        tables = self._remove(variable)
        neighbours = tuple(sorted({v for t in tables for v in t.variables} - {variable}))
        order = (*neighbours, variable)
        total = np.zeros([self._domains[v] for v in order])
        for table in tables:
            total = total + _align(table, order)
        best = total.argmin(axis=-1)
        self._insert(Table(neighbours, total.min(axis=-1)))
        for neighbour in neighbours:
            self._measure(neighbour)
        return neighbours, best

    def fix(self, variable: int) -> None:
        """Set a variable to the value that is best when every neighbour does what suits it."""
        tables = self._remove(variable)
        hopeful = np.zeros(self._domains[variable])
        for table in tables:
            at = table.variables.index(variable)
            others = tuple(i for i in range(table.costs.ndim) if i != at)
            hopeful = hopeful + table.costs.min(axis=others)
        value = self.fixed[variable] = int(hopeful.argmin())
        for table in tables:
            at = table.variables.index(variable)
            rest = table.variables[:at] + table.variables[at + 1 :]
            self._insert(Table(rest, table.costs.take(value, axis=at)))
        for neighbour in {v for t in tables for v in t.variables} - {variable}:
            self._measure(neighbour)

    def _remove(self, variable: int) -> list[Table]:
        self.remaining.discard(variable)
        tables = self._tables.pop(variable)
        for table in tables:
            for other in table.variables:
                if other != variable:
                    self._tables[other].discard(table)
        return sorted(tables, key=lambda table: table.variables)

    def _insert(self, table: Table) -> None:
        if not table.variables:
            self.constant += float(table.costs)
            return
        for variable in table.variables:
            self._tables.setdefault(variable, set()).add(table)

    def _measure(self, variable: int) -> None:
        size = 1
        for other in {v for t in self._tables[variable] for v in t.variables}:
            size *= self._domains[other]
        self._sizes[variable] = size


def _align(table: Table, order: Sequence[int]) -> np.ndarray:
    """Return the table's costs with one dimension per variable of `order`."""
    own = sorted(table.variables, key=order.index)
    costs = table.costs.transpose([table.variables.index(v) for v in own])
    shape = [costs.shape[own.index(v)] if v in own else 1 for v in order]
    return costs.reshape(shape)
