"""Min-sum variable elimination over cost tables: exact minimisation of a sum of small tables.

Each step takes the variable whose elimination makes the smallest table, adds the tables it occurs
in, minimises over it and remembers the best value for every setting of its neighbours. Reading the
remembered values backwards gives the minimiser (Dechter, "Bucket elimination", 1999). With T(v) the
tables that have the variable v, N(v) its neighbours in them, and c the setting of N(v):

    min over all of (sum of tables)
        = min over all but v of (tables without v + t(c)),   t(c) = min over v of (sum of T(v) at c)

which is exact, because nothing else depends on v. It costs the product of the domains of v and
N(v); taking the smallest first keeps that small where the graph is long and thin.

Should a table outgrow the cap, the tables of v are put in groups that stay below it, and each group
is minimised over v by itself: what comes out is no more than the minimum, so all of it is a lower
bound (Dechter and Rish, "Mini-buckets", 2003). Before that the groups are made to agree on what
each value of v costs at least, by shifting costs among them, which leaves their sum as it is and
raises the bound (Ihler et al., "Join-graph based cost-shifting schemes", 2012). Read backwards,
each variable takes what is best for all its tables as the others stand; that has a cost, and the
bound says by how much it may be above the least.

Models repeat: the tables of one block are those of the next one over other variables. Equal arrays
of costs are therefore one array, and a step is computed once for the arrays it adds and how their
dimensions meet; a block that has the same surroundings as one before it costs look-ups only. What
all entries of a table have in common is no matter of choice and is taken out of it at once: the
surroundings would otherwise grow dearer from block to block, and small differences would drown in
the 53 bits of a large sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mithril.sharding.minima import find_minima, minimise_sum, spread_out
from mithril.sharding.order import Order

TABLE_CAP = 4_000_000
WIDE = 1000
"""A sum over one value of a variable with more entries than this is made by itself."""
REDUCED_CAP = 2**24
"""The most entries that are added up for a variable between two others."""


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


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found.

    Args:
        picked: a value for each variable that occurs in a table.
        cost: of these values, summed over the tables.
        bound: what no choice of values costs less than; the cost itself if that is the least.
    """

    picked: dict[int, int]
    cost: float
    bound: float

    @property
    def is_exact(self) -> bool:
        """Whether nothing costs less."""
        return self.bound >= self.cost


def eliminate(
    domains: Sequence[int],
    tables: Iterable[Table],
    cap: int = TABLE_CAP,
    steps: Steps | None = None,
) -> Answer:
    """Return the minimising value of each variable, and the minimum.

    Args:
        domains: number of values of each variable.
        tables: cost tables; their sum is minimised. `inf` forbids a combination.
        cap: largest table, in entries.
        steps: what was computed before, of arrays that are the same objects, and how much.

    Variables that occur in no table get value 0.
    """
    tables = list(tables)
    state = _State(domains, tables, steps or Steps(), cap)
    trail: list[_Known | _Summed] = []
    is_exact = True
    while (cheapest := state.cheapest()) is not None:
        variable, size = cheapest
        if size > cap:
            is_exact = False
            trail.append(state.eliminate_in_groups(variable))
        else:
            trail.append(state.eliminate(variable))
    picked: dict[int, int] = {}
    for step in reversed(trail):
        picked[step.variable] = step.pick(picked)
    cost = state.constant if is_exact else evaluate(tables, picked)
    return Answer(picked, cost, state.constant)


@dataclass(frozen=True, slots=True)
class Reduced:
    """A sum of tables in which every variable has three neighbours or more.

    Args:
        variables: those that are left, of those of the whole sum.
        domains: number of values of each.
        tables: over their places in `variables`.
        trail: how the others were minimised over.
    """

    variables: Sequence[int]
    domains: Sequence[int]
    tables: Sequence[Table]
    trail: Sequence[_Known | _Summed]

    def complete(self, picked: Mapping[int, int]) -> dict[int, int]:
        """Return the best values of all variables of the whole sum for some of those left."""
        found = {self.variables[at]: value for at, value in picked.items()}
        for step in reversed(self.trail):
            found[step.variable] = step.pick(found)
        return found


def reduce(domains: Sequence[int], tables: Sequence[Table], steps: Steps) -> Reduced:
    """Minimise over variables with one or two neighbours, whose elimination makes no larger scope.

    Arguments are those of `eliminate`; tables are over two variables at most.
    """
    state = _State(domains, tables, steps, REDUCED_CAP)
    trail = []
    waiting = list(range(len(domains)))[::-1]
    while waiting:
        variable = waiting.pop()
        around = state.find_neighbours(variable)
        if around is not None and len(around) <= 2:
            size = domains[variable] * math.prod(domains[other] for other in around)
            if size <= REDUCED_CAP:
                trail.append(state.eliminate(variable))
                waiting += sorted(around, reverse=True)
    return state.list_rest(trail)


def evaluate(tables: Iterable[Table], picked: Mapping[int, int]) -> float:
    """Return what values cost.

    Args:
        tables: whose costs are summed.
        picked: the values; 0 for variables that are not there.
    """
    costs = (table.costs[tuple(picked.get(v, 0) for v in table.variables)] for table in tables)
    return float(sum(costs))


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A variable that was minimised over: its best value for every setting of its neighbours."""

    variable: int
    neighbours: tuple[int, ...]
    best: np.ndarray

    def pick(self, picked: Mapping[int, int]) -> int:
        """Return the best value as others stand."""
        return int(self.best[tuple(picked[n] for n in self.neighbours)])


@dataclass(frozen=True, slots=True, eq=False)
class _Summed:
    """A variable that was minimised over, of which it is not noted where: its tables."""

    variable: int
    tables: Sequence[Table]

    def pick(self, picked: Mapping[int, int]) -> int:
        """Return the value that is best for all of the tables as others stand."""
        rows = (
            table.costs[tuple(picked.get(v, slice(None)) for v in table.variables)]
            for table in self.tables
        )
        return int(np.sum(list(rows), axis=0).argmin())


class _State:
    """The tables not yet eliminated, indexed by variable."""

    def __init__(
        self, domains: Sequence[int], tables: Sequence[Table], steps: Steps, cap: int
    ) -> None:
        self.constant = 0.0
        self._domains = domains
        self._cap = cap
        self._steps = steps
        self._tables: dict[int, dict[Table, None]] = {}
        self._order = Order(domains, [table.variables for table in tables])
        for table in tables:
            self._insert(table.variables, self._steps.share(table.costs))

    def cheapest(self) -> tuple[int, int] | None:
        """Return the variable whose elimination makes the smallest table, and that size."""
        before = self._order.compared
        found = self._order.find_cheapest()
        self._steps.work.compared += self._order.compared - before
        return found

    def eliminate(self, variable: int) -> _Known | _Summed:
        """Minimise over a variable; return what tells its best value for all neighbours'."""
        tables, around = self._remove(variable)
        neighbours = tuple(sorted(around))
        shared, best = self._steps.minimise(
            [self._domains[v] for v in (*neighbours, variable)],
            [(table.costs, _find_positions(table, (*neighbours, variable))) for table in tables],
        )
        self._insert(neighbours, shared)
        self._order.join(neighbours)
        if best is None:
            return _Summed(variable, tables)
        return _Known(variable, neighbours, best)

    def eliminate_in_groups(self, variable: int) -> _Summed:
        """Minimise over a variable, its tables in groups below the cap; return the tables."""
        tables, neighbours = self._remove(variable)
        groups = _group(tables, self._domains, self._cap)
        for group, more in zip(groups, _shift(variable, groups, self._domains), strict=True):
            least, shift = self._steps.share(more)
            self.constant += least
            terms = [*group, Table((variable,), shift)]
            others = tuple(sorted({v for t in terms for v in t.variables} - {variable}))
            shared, _ = self._steps.minimise(
                [self._domains[v] for v in (*others, variable)],
                [(t.costs, _find_positions(t, (*others, variable))) for t in terms],
            )
            self._insert(others, shared)
        for one in neighbours:
            around = {v for table in self._tables.get(one, ()) for v in table.variables}
            self._order.surround(one, around - {one})
        return _Summed(variable, tables)

    def find_neighbours(self, variable: int) -> frozenset[int] | None:
        """Return what a variable shares tables with; None if it is in none, or is eliminated."""
        return self._order.find_neighbours(variable)

    def list_rest(self, trail: Sequence[_Known | _Summed]) -> Reduced:
        """Return what is left."""
        variables = sorted(variable for variable, tables in self._tables.items() if tables)
        places = {variable: at for at, variable in enumerate(variables)}
        tables = dict.fromkeys(table for v in variables for table in self._tables[v])
        left = [Table(tuple(places[v] for v in t.variables), t.costs) for t in tables]
        left.append(Table((), np.array(self.constant)))
        return Reduced(variables, [self._domains[v] for v in variables], left, trail)

    def _remove(self, variable: int) -> tuple[list[Table], set[int]]:
        """Take a variable out, and the tables it occurs in; return them, and its neighbours."""
        tables = self._tables.pop(variable)
        for table in tables:
            for other in table.variables:
                if other != variable:
                    del self._tables[other][table]
        ordered = sorted(tables, key=lambda table: table.variables)
        return ordered, self._order.remove(variable)

    def _insert(self, variables: tuple[int, ...], shared: Shared) -> None:
        least, costs = shared
        self.constant += least
        if variables:
            table = Table(variables, costs)
            for variable in variables:
                self._tables.setdefault(variable, {})[table] = None


def _group(tables: Sequence[Table], domains: Sequence[int], cap: int) -> list[list[Table]]:
    """Return tables in groups whose sum has no more entries than the cap, or that of one table."""
    groups: list[tuple[set[int], list[Table]]] = []
    for table in sorted(tables, key=lambda t: (-t.costs.size, t.variables)):
        for variables, group in groups:
            joint = variables.union(table.variables)
            if math.prod(domains[v] for v in joint) <= cap:
                variables |= joint
                group.append(table)
                break
        else:
            groups.append((set(table.variables), [table]))
    return [group for _, group in groups]


def _shift(
    variable: int, groups: Sequence[list[Table]], domains: Sequence[int]
) -> list[np.ndarray]:
    """Return for each group what makes all agree on the least cost of each value of a variable."""
    least = []
    for group in groups:
        total = np.zeros(domains[variable])
        for table in group:
            at = table.variables.index(variable)
            total += table.costs.min(axis=tuple(i for i in range(table.costs.ndim) if i != at))
        least.append(total)
    mean = np.sum(least, axis=0) / len(least)
    known = [np.where(np.isfinite(own), own, 0.0) for own in least]
    return [np.where(np.isfinite(mean), mean - own, 0.0) for own in known]


Term = tuple[np.ndarray, tuple[int, ...]]
"""Costs, and which dimension of a step each of their dimensions is."""
Shared = tuple[float, np.ndarray]
"""The least of some costs, and the one array that stands for all that are equal but for it."""
Minimum = tuple[Shared, np.ndarray | None]
"""The least costs for every setting of the other dimensions, and where they are, if it is noted."""


@dataclass(slots=True)
class Steps:
    """Minima over the last dimension of sums of arrays, each computed once.

    Args:
        work: counts what is done.
    """

    work: Work = field(default_factory=Work)
    known: dict[int, tuple[np.ndarray, Shared]] = field(default_factory=dict)
    arrays: dict[tuple[tuple[int, ...], bytes], Shared] = field(default_factory=dict)
    minima: dict[tuple[tuple[int, tuple[int, ...]], ...], Minimum] = field(default_factory=dict)

    def share(self, costs: np.ndarray) -> Shared:
        """Return the least of some costs, and the array that stands for them without it."""
        if id(costs) not in self.known:
            self.known[id(costs)] = costs, self._compare(costs)
        return self.known[id(costs)][1]

    def _compare(self, costs: np.ndarray) -> Shared:
        costs = np.asarray(costs, dtype=float, order="C")
        key = (costs.shape, costs.tobytes())
        if key not in self.arrays:
            least = float(costs.min())
            # Where everything is forbidden no choice is better than another one (and inf - inf
            # would be no number).
            rest = costs - least if math.isfinite(least) else np.zeros(costs.shape)
            self.arrays[key] = (least, self._compare(rest)[1] if least else costs)
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
        self.work.entries += math.prod(shape)
        spread = [spread_out(costs, positions, len(shape)) for costs, positions in terms]
        is_wide = math.prod(shape[:-1]) > WIDE
        smallest, best = (
            (minimise_sum(shape, spread), None) if is_wide else find_minima(shape, spread)
        )
        self.minima[key] = self._compare(smallest), best
        return self.minima[key]


def _find_positions(table: Table, order: Sequence[int]) -> tuple[int, ...]:
    """Return where the variables of a table stand in an order."""
    return tuple(order.index(variable) for variable in table.variables)
