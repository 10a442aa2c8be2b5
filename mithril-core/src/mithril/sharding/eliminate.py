"""Min-sum variable elimination over cost tables: exact minimisation of a sum of small tables.

Each step takes the variable whose elimination makes the smallest table, adds the tables it occurs
in, minimises over it and remembers the best value for every setting of its neighbours. Reading the
remembered values backwards gives the minimiser (Dechter, "Bucket elimination", 1999). With T(v) the
tables that have the variable v, N(v) its neighbours in them, and c the setting of N(v):

    min over all of (sum of tables)
        = min over all but v of (tables without v + t(c)),   t(c) = min over v of (sum of T(v) at c)

which is exact, because nothing else depends on v. It costs the product of the domains of v and
N(v); taking the smallest first keeps that small where the graph is long and thin. Should a table
outgrow the cap, that variable is fixed to its locally best value instead and the result is no
longer proved exact.

Models repeat: the tables of one block are those of the next one over other variables. Equal arrays
of costs are therefore one array, and a step is computed once for the arrays it adds and how their
dimensions meet; a block that has the same surroundings as one before it costs look-ups only. What
all entries of a table have in common is no matter of choice and is taken out of it at once: the
surroundings would otherwise grow dearer from block to block, and small differences would drown in
the 53 bits of a large sum.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

TABLE_CAP = 4_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs over some variables: one array dimension per variable."""

    variables: tuple[int, ...]
    costs: np.ndarray


@dataclass(slots=True)
class Work:
    """What a minimisation has done.

    Args:
        steps: variables eliminated.
        entries: entries of the tables that were added up for that.
        looked_up: steps whose result was known from an equal one.
        compared: entries of the queue of variables that were looked at.
    """

    steps: int = 0
    entries: int = 0
    looked_up: int = 0
    compared: int = 0


def minimise(
    domains: Sequence[int],
    tables: Iterable[Table],
    cap: int = TABLE_CAP,
    work: Work | None = None,
) -> tuple[dict[int, int], float, bool]:
    """Return the minimising value of each variable, the minimum, and whether it is exact.

    Args:
        domains: number of values of each variable.
        tables: cost tables; their sum is minimised. `inf` forbids a combination.
        cap: largest table, in entries.
        work: counts what is done.

    Variables that occur in no table get value 0.
    """
    state = _State(domains, tables, work or Work())
    trail: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    is_exact = True
    while (cheapest := state.cheapest()) is not None:
        variable, size = cheapest
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
    """The tables not yet eliminated, indexed by variable.

    A variable's size is that of the table its elimination adds up: the product of the domains of
    the variable and of its neighbours, which it shares a table with. The queue holds a pair (size,
    variable) for each size a variable ever had; one that is no longer true is passed over.
    """

    def __init__(self, domains: Sequence[int], tables: Iterable[Table], work: Work) -> None:
        self.constant = 0.0
        self.fixed: dict[int, int] = {}
        self._domains = domains
        self._work = work
        self._steps = _Steps(work)
        self._tables: dict[int, dict[Table, None]] = {}
        self._neighbours: dict[int, set[int]] = {}
        for table in tables:
            self._insert(table.variables, self._steps.share(table.costs))
            for variable in table.variables:
                self._neighbours.setdefault(variable, set()).update(table.variables)
        for variable, neighbours in self._neighbours.items():
            neighbours.discard(variable)
        self._sizes = {variable: self._compute_size(variable) for variable in self._neighbours}
        self._queue = [(size, variable) for variable, size in self._sizes.items()]
        heapq.heapify(self._queue)

    def cheapest(self) -> tuple[int, int] | None:
        """Return the variable whose elimination makes the smallest table, and that size."""
        while self._queue:
            size, variable = heapq.heappop(self._queue)
            self._work.compared += 1
            if self._sizes.get(variable) == size:
                return variable, size
        return None

    def eliminate(self, variable: int) -> tuple[tuple[int, ...], np.ndarray]:
        """Minimise over a variable; return its neighbours and its best value for their settings."""
        neighbours = tuple(sorted(self._neighbours[variable]))
        tables = self._remove(variable)
        shared, best = self._steps.minimise(
            [self._domains[v] for v in (*neighbours, variable)],
            [(table.costs, _find_positions(table, (*neighbours, variable))) for table in tables],
        )
        self._insert(neighbours, shared)
        for one in neighbours:
            self._neighbours[one].update(neighbours)
            self._neighbours[one].discard(one)
            self._measure(one)
        return neighbours, best

    def fix(self, variable: int) -> None:
        """Set a variable to the value that is best when every neighbour does what suits it."""
        neighbours = self._neighbours[variable]
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
            self._insert(rest, self._steps.share(table.costs.take(value, axis=at)))
        for neighbour in neighbours:
            self._measure(neighbour)

    def _remove(self, variable: int) -> list[Table]:
        """Take a variable out, and the tables it occurs in, which are returned."""
        del self._sizes[variable]
        for neighbour in self._neighbours.pop(variable):
            self._neighbours[neighbour].discard(variable)
        tables = self._tables.pop(variable)
        for table in tables:
            for other in table.variables:
                if other != variable:
                    del self._tables[other][table]
        return sorted(tables, key=lambda table: table.variables)

    def _insert(self, variables: tuple[int, ...], shared: Shared) -> None:
        least, costs = shared
        self.constant += least
        if variables:
            table = Table(variables, costs)
            for variable in variables:
                self._tables.setdefault(variable, {})[table] = None

    def _measure(self, variable: int) -> None:
        size = self._compute_size(variable)
        if size != self._sizes[variable]:
            self._sizes[variable] = size
            heapq.heappush(self._queue, (size, variable))

    def _compute_size(self, variable: int) -> int:
        others = (self._domains[other] for other in self._neighbours[variable])
        return self._domains[variable] * math.prod(others)


Term = tuple[np.ndarray, tuple[int, ...]]
"""Costs, and which dimension of a step each of their dimensions is."""
Shared = tuple[float, np.ndarray]
"""The least of some costs, and the one array that stands for all that are equal but for it."""
Minimum = tuple[Shared, np.ndarray]
"""The least costs for every setting of the other dimensions, and where they are."""


@dataclass(slots=True)
class _Steps:
    """Minima over the last dimension of sums of arrays, each computed once."""

    work: Work
    arrays: dict[tuple[tuple[int, ...], bytes], Shared] = field(default_factory=dict)
    minima: dict[tuple[tuple[int, tuple[int, ...]], ...], Minimum] = field(default_factory=dict)

    def share(self, costs: np.ndarray) -> Shared:
        """Return the least of some costs, and the array that stands for them without it."""
        costs = np.asarray(costs, dtype=float, order="C")
        key = (costs.shape, costs.tobytes())
        if key not in self.arrays:
            least = float(costs.min())
            # Where everything is forbidden no choice is better than another one (and inf - inf
            # would be no number).
            rest = costs - least if math.isfinite(least) else np.zeros(costs.shape)
            self.arrays[key] = (least, self.share(rest)[1] if least else costs)
        return self.arrays[key]

    def minimise(self, shape: Sequence[int], terms: Sequence[Term]) -> Minimum:
        """Return the minimum over the last dimension of a sum of shared arrays.

        Args:
            shape: of the sum.
            terms: what is added up, in this order.
        """
        key = tuple((id(costs), positions) for costs, positions in terms)
        self.work.steps += 1
        if key in self.minima:
            self.work.looked_up += 1
            return self.minima[key]
        total = np.zeros(shape)
        self.work.entries += total.size
        for costs, positions in terms:
            total += _spread(costs, positions, len(shape))
        best = total.argmin(axis=-1)
        smallest = np.take_along_axis(total, best[..., None], axis=-1)[..., 0]
        self.minima[key] = self.share(smallest), best
        return self.minima[key]


def _find_positions(table: Table, order: Sequence[int]) -> tuple[int, ...]:
    """Return where the variables of a table stand in an order."""
    return tuple(order.index(variable) for variable in table.variables)


def _spread(costs: np.ndarray, positions: Sequence[int], rank: int) -> np.ndarray:
    """Return costs with each dimension at its position, and dimensions of size 1 elsewhere."""
    moved = costs.transpose(np.argsort(positions))
    return np.expand_dims(moved, [i for i in range(rank) if i not in positions])
