"""Fewer values for each variable, where a table of the elimination would outgrow its cap.

Costs may be shifted between tables that share a variable without a change of any sum. The sum of
the least entries of all tables is a lower bound. Going forward and backward through the variables,
each takes what its tables cost at least and hands it on in equal shares, which never lowers the
bound (min-sum diffusion: Werner, "A linear programming approach to max-sum problem", 2007). With
costs shifted so, a value of a variable is in no better choice than one that is known if the bound,
with that value in the place of the best one, is not below what the known choice costs: it is left
out. A known choice is the best one of few values of each variable, those that raise the bound
least. What is left is eliminated as before, and is exact if its tables stay below the cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mithril.sharding.eliminate import (
    TABLE_CAP,
    Answer,
    Table,
    Work,
    eliminate,
    evaluate,
)

SWEEPS = 20
"""So many times messages go forward and backward before values are left out."""
ROUNDS = 4
"""So many times that is done."""
BEAM = 20
"""So many values of each variable, those that may be in the cheapest choices, are tried first."""
NEAR = 1e-9
"""Choices are equally good that differ by no more than such a part."""
HUGE = 1e3
"""What is forbidden costs so many times the sum of everything else."""


def minimise(
    domains: Sequence[int],
    tables: Sequence[Table],
    cap: int = TABLE_CAP,
    work: Work | None = None,
) -> Answer:
    """Return the minimising value of each variable, the minimum, and a bound of it.

    Arguments are those of `eliminate`, which this is where no table outgrows the cap.
    """
    best = eliminate(domains, tables, cap, work)
    if best.is_exact or max(len(table.variables) for table in tables) > 2:
        return best
    left: list[np.ndarray] = [np.arange(size) for size in domains]
    bound = best.bound

    def solve(values: Sequence[np.ndarray]) -> float:
        """Note the best choice of some values, and return what none of them costs less than."""
        nonlocal best
        sizes = [len(some) for some in values]
        found = eliminate(sizes, [_restrict(table, values) for table in tables], cap, work)
        if found.cost < best.cost:
            picked = {v: int(values[v][at]) for v, at in found.picked.items()}
            best = Answer(picked, evaluate(tables, picked), bound)
        return found.bound

    for _ in range(ROUNDS):
        pairs = _Pairs([len(some) for some in left], [_restrict(t, left) for t in tables])
        for _ in range(SWEEPS):
            pairs.pass_messages()
        least, more = pairs.measure()
        tried = pairs.pick()
        solve(
            [
                np.union1d(some[_find_least(own)], [some[tried[v]], best.picked.get(v, 0)])
                for v, (some, own) in enumerate(zip(left, more, strict=True))
            ]
        )
        limit = best.cost - NEAR * abs(best.cost)
        kept = [some[least + own < limit] for some, own in zip(left, more, strict=True)]
        # Every better choice is among the values that are left.
        bound = max(bound, min(least, best.cost))
        if all(len(some) for some in kept) and bound < limit:
            left = kept
            bound = max(bound, min(solve(left), best.cost))
            limit = best.cost - NEAR * abs(best.cost)
        else:
            bound = limit
        if bound >= limit:
            return Answer(best.picked, best.cost, best.cost)
    return Answer(best.picked, best.cost, bound)


def _find_least(costs: np.ndarray) -> np.ndarray:
    """Return the positions of the least costs, in order."""
    return np.sort(costs.argsort(kind="stable")[:BEAM])


def _restrict(table: Table, left: Sequence[np.ndarray]) -> Table:
    """Return a table over the values that are left."""
    costs = table.costs
    for axis, variable in enumerate(table.variables):
        if len(left[variable]) < costs.shape[axis]:
            costs = costs.take(left[variable], axis=axis)
    return table if costs is table.costs else replace(table, costs=costs)


@dataclass(slots=True, eq=False)
class _Edge:
    """The costs of two variables, and what has been shifted to each."""

    ends: tuple[int, int]
    costs: np.ndarray
    messages: list[np.ndarray]

    def rest(self) -> np.ndarray:
        """Return the costs without what has been shifted."""
        left: np.ndarray = self.costs - self.messages[0][:, None] - self.messages[1]
        return left


class _Pairs:
    """Costs of single variables and of pairs of them.

    Args:
        domains: number of values of each variable.
        tables: over two variables at most.
    """

    def __init__(self, domains: Sequence[int], tables: Sequence[Table]) -> None:
        finite = [table.costs[np.isfinite(table.costs)] for table in tables]
        top = sum(float(np.abs(costs).max(initial=0.0)) for costs in finite)
        self._huge = HUGE * max(top, 1.0)
        self._constant = 0.0
        self._own = [np.zeros(size) for size in domains]
        sums: dict[tuple[int, int], np.ndarray] = {}
        known: dict[int, np.ndarray] = {}
        for table in tables:
            costs = known.setdefault(
                id(table.costs), np.where(np.isinf(table.costs), self._huge, table.costs)
            )
            if not table.variables:
                self._constant += float(costs)
            elif len(table.variables) == 1:
                self._own[table.variables[0]] = self._own[table.variables[0]] + costs
            else:
                a, b = table.variables
                key, turned = ((a, b), costs) if a < b else ((b, a), costs.T)
                sums[key] = sums[key] + turned if key in sums else turned
        self._edges = [
            _Edge(ends, costs, [np.zeros(domains[v]) for v in ends]) for ends, costs in sums.items()
        ]
        self._around: list[list[tuple[_Edge, int]]] = [[] for _ in domains]
        for edge in self._edges:
            for end, variable in enumerate(edge.ends):
                self._around[variable].append((edge, end))
        self._order = sorted(range(len(domains)), key=self._place)
        self._rank = {variable: at for at, variable in enumerate(self._order)}

    def pass_messages(self) -> None:
        """Shift costs forward and backward through the variables."""
        for order, sign in ((self._order, 1), (self._order[::-1], -1)):
            for variable in order:
                self._send(variable, sign)

    def measure(self) -> tuple[float, list[np.ndarray]]:
        """Return a bound of all sums, and for each value how much higher it is with that one."""
        totals = [self._total(v) for v in range(len(self._own))]
        bound = self._constant + sum(float(total.min()) for total in totals)
        more = [total - total.min() for total in totals]
        for edge in self._edges:
            rest = edge.rest()
            least = float(rest.min())
            bound += least
            for end, variable in enumerate(edge.ends):
                more[variable] = more[variable] + (rest.min(axis=1 - end) - least)
        return bound, more

    def pick(self) -> dict[int, int]:
        """Return good values: each the best one, given those before it, and then given all."""
        picked: dict[int, int] = {}
        for variable in self._order:
            picked[variable] = self._choose(variable, picked)
        for order in (self._order[::-1], self._order) * 3:
            for variable in order:
                picked[variable] = self._choose(variable, picked)
        return picked

    def _choose(self, variable: int, picked: Mapping[int, int]) -> int:
        """Return the best value of a variable as others stand; of the rest, messages are known."""
        total = self._own[variable].copy()
        for edge, end in self._around[variable]:
            at = picked.get(edge.ends[1 - end])
            if at is None:
                total += edge.messages[end]
            else:
                total += edge.costs[:, at] if end == 0 else edge.costs[at]
        return int(total.argmin())

    def _place(self, variable: int) -> tuple[float, int]:
        """Return where a variable stands: what comes of others behind the first of them."""
        others = [edge.ends[1 - end] for edge, end in self._around[variable]]
        return min([float(variable), *(other + 0.5 for other in others)]), variable

    def _send(self, variable: int, sign: int) -> None:
        """Shift to a variable what its edges cost at least, and on to those of later variables."""
        around, rank = self._around[variable], self._rank[variable]
        later = []
        for edge, end in around:
            edge.messages[end] = edge.messages[end] + edge.rest().min(axis=1 - end)
            if (self._rank[edge.ends[1 - end]] - rank) * sign > 0:
                later.append((edge, end))
        if later:
            share = self._total(variable) / max(len(later), len(around) - len(later))
            for edge, end in later:
                edge.messages[end] = edge.messages[end] - share

    def _total(self, variable: int) -> np.ndarray:
        total = self._own[variable].copy()
        for edge, end in self._around[variable]:
            total += edge.messages[end]
        return total
