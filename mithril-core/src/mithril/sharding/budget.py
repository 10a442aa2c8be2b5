"""Minimisation within limits: Lagrange's multipliers, and branch and bound for what they leave.

With cost T(x) and amounts M_k(x) that may not exceed L_k, all of them sums of tables,

    q(u) = min over x of T(x) + sum of u_k (M_k(x) / L_k - 1),   u >= 0

is no more than the least cost within the limits (Everett, "Generalized Lagrange multiplier method",
1963), and `eliminate` computes it as it does a plain sum. Each x that it meets gives an upper bound
of q, a plane over u; the next u is where all these planes are highest together (Kelley, "The
cutting-plane method", 1960). Where even the highest q is below the best x within the limits, the
values of a variable are split in two by how much they take, and both halves are bounded by
themselves, the lowest bound first. That ends after a number of halves, never after a time: all
processes of a job have to find the same.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mithril.sharding.eliminate import TABLE_CAP, Answer, Steps, Table, evaluate
from mithril.sharding.narrow import minimise
from mithril.sharding.planes import Plane, find_highest

HALVES = 40_000
"""So many halves times variables are bounded at most, but those of 100 halves in any case."""
ROUNDS = 30
"""So many multipliers are tried at most for one bound."""
NEAR = 1e-9
"""Bounds are equal that differ by no more than such a part."""
STEEPEST = 1e4
"""Multipliers are not looked for beyond so many times the cost."""

Picked = dict[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """An amount that may not exceed something.

    Args:
        tables: whose sum it is, each of one variable.
        most: what it may be at most, above 0.
    """

    tables: tuple[Table, ...]
    most: float

    def excess(self, picked: Mapping[int, int]) -> float:
        """Return by what part of the limit some values exceed it; below 0 if they do not."""
        return evaluate(self.tables, picked) / self.most - 1.0


def minimise_within(
    domains: Sequence[int],
    tables: Sequence[Table],
    limits: Sequence[Limit],
    cap: int = TABLE_CAP,
    below: float = math.inf,
    steps: Steps | None = None,
) -> Answer:
    """Return the values that cost least within limits; the cost is infinite if none are found.

    Then the bound is infinite, too, if it is proved that there are none within the limits.

    Args:
        domains: number of values of each variable.
        tables: cost tables; their sum is minimised.
        limits: what else they may not exceed.
        cap: largest table, in entries.
        below: without limits, what they have to cost less than to be worth to be found.
        steps: without limits, what was computed before, of arrays that are the same objects.
    """
    if not limits:
        return minimise(domains, tables, cap, steps, below)
    active: list[Limit] = []
    while True:  # most limits say nothing that others do not
        found = _branch(_Problem(domains, tables, tuple(active), cap, {}))
        if math.isinf(found.cost):
            return found
        over = [limit for limit in limits if limit.excess(found.picked) > 0]
        if not over:
            return found
        active.append(max(over, key=lambda limit: limit.excess(found.picked)))


def minimise_largest(
    domains: Sequence[int],
    tables: Sequence[Table],
    amounts: Sequence[Sequence[Table]],
    cap: int = TABLE_CAP,
) -> Answer:
    """Return admitted values whose largest amount is small, and what it cannot be less than.

    Args:
        domains: number of values of each variable.
        tables: what they forbid (`inf`) is not admitted; what they cost does not count.
        amounts: each the sum of its tables.
        cap: largest table, in entries.
    """
    hard = _keep_forbidden(tables)
    return _balance(lambda mixed: minimise(domains, [*mixed, *hard], cap), amounts)


def _balance(
    solve: Callable[[Sequence[Table]], Answer], amounts: Sequence[Sequence[Table]]
) -> Answer:
    """Return the values whose largest amount is small, and a bound of it.

    Any mean of the amounts is no more than the largest; sought are the weights whose least mean is
    highest.
    """
    picked, cost, bound = Picked(), math.inf, -math.inf
    planes: list[Plane] = []
    weights = [1.0 / len(amounts)] * len(amounts)
    for _ in range(ROUNDS):
        weighed = zip(weights, amounts, strict=True)
        found = solve([table for weight, some in weighed for table in _scale(some, weight)])
        sizes = tuple(evaluate(some, found.picked) for some in amounts)
        bound = max(bound, found.bound)
        if math.isinf(found.cost):
            break
        if max(sizes) < cost:
            picked, cost = found.picked, max(sizes)
        if sizes in planes or not is_below(bound, cost):
            break
        planes.append(sizes)
        last = [(plane[-1], *(size - plane[-1] for size in plane[:-1])) for plane in planes]
        others, _ = find_highest(last, 1.0, is_share=True)
        weights = [*others, max(0.0, 1.0 - sum(others))]  # the last one is what the others leave
    return Answer(picked, cost, min(bound, cost))


def is_below(bound: float, cost: float) -> bool:
    """Return whether a bound leaves something to gain."""
    if math.isinf(cost):
        return not math.isinf(bound) or bound < 0
    return cost - bound > NEAR * max(1.0, abs(cost))


def _scale(tables: Sequence[Table], factor: float) -> Iterator[Table]:
    if factor:
        yield from (replace(table, costs=table.costs * factor) for table in tables)


def _keep_forbidden(tables: Sequence[Table]) -> list[Table]:
    """Return tables that forbid what others do, and cost nothing."""
    known: dict[int, np.ndarray | None] = {}  # equal blocks have the same arrays
    found = []
    for table in tables:
        if id(table.costs) not in known:
            is_out = np.isinf(table.costs)
            known[id(table.costs)] = np.where(is_out, np.inf, 0.0) if is_out.any() else None
        costs = known[id(table.costs)]
        if costs is not None:
            found.append(replace(table, costs=costs))
    return found


# ------------------------------------------------------------------ branch and bound


@dataclass(frozen=True, slots=True, eq=False)
class _Dual:
    """What multipliers have found.

    Args:
        bound: the highest q; infinite if no values keep to the limits.
        multipliers: where that is.
        picked: the cheapest values within the limits that were met.
        cost: of these.
        over: values that exceed a limit, close to the multipliers of the bound.
    """

    bound: float
    multipliers: tuple[float, ...]
    picked: Picked
    cost: float
    over: Picked


def _branch(root: _Problem) -> Answer:
    """Return the best values of a problem, and a bound."""
    picked, cost = Picked(), math.inf
    queue: list[tuple[float, int, _Problem, _Dual]] = []
    count, halves, size = itertools.count(), 0, max(100, len(root.domains))

    def note(problem: _Problem, dual: _Dual) -> None:
        nonlocal picked, cost
        if dual.cost < cost:
            picked, cost = dual.picked, dual.cost
        if is_below(dual.bound, cost):
            heapq.heappush(queue, (dual.bound, next(count), problem, dual))

    note(root, root.climb([0.0] * len(root.limits), math.inf))
    while queue and is_below(queue[0][0], cost) and halves * size < HALVES:
        _, _, problem, dual = queue[0]
        parts = problem.halve(dual)
        if not parts:
            break
        heapq.heappop(queue)
        for part in parts:
            halves += 1
            found = part.climb(dual.multipliers, cost)
            # No part is below the bound of the whole.
            note(part, replace(found, bound=max(found.bound, dual.bound)))
    return Answer(picked, cost, min([cost, *(item[0] for item in queue)]))


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """A problem, of which some variables have only some values left."""

    domains: Sequence[int]
    tables: Sequence[Table]
    limits: tuple[Limit, ...]
    cap: int
    left: Mapping[int, tuple[int, ...]]

    def climb(self, start: Sequence[float], known: float) -> _Dual:
        """Return the best multipliers.

        Args:
            start: the first ones.
            known: a cost within the limits; what cannot be below it is not looked at closely.
        """
        at, bound, best_at = tuple(start), -math.inf, tuple(start)
        picked, cost, over = Picked(), math.inf, Picked()
        planes: list[Plane] = []
        for _ in range(ROUNDS):
            found = self._solve([*self.tables, *self._weigh(at)])
            least = found.bound - sum(at)
            price = evaluate(self.tables, found.picked)
            excess = [limit.excess(found.picked) for limit in self.limits]
            if least > bound:
                bound, best_at = least, at
            if max(excess, default=0.0) > 0:
                over = found.picked
            elif price < cost:
                picked, cost = found.picked, price
            if (price, *excess) in planes or not is_below(bound, min(cost, known)):
                break
            planes.append((price, *excess))
            if not self.limits:
                break
            if len(planes) == 1:
                closest = self._find_closest()
                if closest.bound > 1.0 + NEAR:
                    return _Dual(math.inf, best_at, picked, math.inf, over)
                price = evaluate(self.tables, closest.picked)
                if closest.cost <= 1.0 and price < cost:
                    picked, cost = closest.picked, price
                planes.append((price, *(limit.excess(closest.picked) for limit in self.limits)))
            steepest = STEEPEST * max(1.0, *(abs(plane[0]) for plane in planes))
            rest, height = find_highest(planes, steepest)
            if not is_below(bound, height):
                break
            at = tuple(rest)
        return _Dual(bound, best_at, picked, cost, over)

    def halve(self, dual: _Dual) -> list[_Problem]:
        """Return the problem with each half of the values of one variable; nothing if none is left.

        It is the variable that takes most beyond what it takes in the values within the limits; one
        half is what takes no more than there.
        """
        best, at, middle = 0.0, -1, 0.0
        sizes = self._list_sizes()
        for variable, own in sizes.items():
            left = list(self._list_left(variable))
            here = own[dual.over.get(variable, left[0])]
            there = own[dual.picked[variable]] if variable in dual.picked else own[left].min()
            if here - there > best:
                best, at, middle = here - there, variable, there
        if at < 0:
            return []
        low = tuple(i for i in self._list_left(at) if sizes[at][i] <= middle)
        high = tuple(i for i in self._list_left(at) if sizes[at][i] > middle)
        return [replace(self, left={**self.left, at: some}) for some in (low, high) if some]

    def _find_closest(self) -> Answer:
        """Return the values whose largest amount is the least part of its limit."""
        hard = _keep_forbidden(self.tables)
        amounts = [list(_scale(limit.tables, 1.0 / limit.most)) for limit in self.limits]
        return _balance(lambda mixed: self._solve([*mixed, *hard]), amounts)

    def _weigh(self, multipliers: Sequence[float]) -> Iterator[Table]:
        for multiplier, limit in zip(multipliers, self.limits, strict=True):
            yield from _scale(limit.tables, multiplier / limit.most)

    def _list_left(self, variable: int) -> Sequence[int]:
        return self.left.get(variable) or range(self.domains[variable])

    def _list_sizes(self) -> dict[int, np.ndarray]:
        """Return what the values of each variable take, as parts of the limits."""
        found: dict[int, np.ndarray] = {}
        for limit in self.limits:
            for table in limit.tables:
                for variable in table.variables:
                    found[variable] = found.get(variable, 0.0) + table.costs / limit.most
        return found

    def _solve(self, tables: Sequence[Table]) -> Answer:
        """Return the least sum of tables over the values that are left."""
        if not self.left:
            return minimise(self.domains, tables, self.cap)
        sizes = [len(self._list_left(variable)) for variable in range(len(self.domains))]
        found = minimise(sizes, [self._restrict(table) for table in tables], self.cap)
        picked = {v: self._list_left(v)[at] for v, at in found.picked.items()}
        return Answer(picked, found.cost, found.bound)

    def _restrict(self, table: Table) -> Table:
        costs = table.costs
        for at, variable in enumerate(table.variables):
            if variable in self.left:
                costs = costs.take(self.left[variable], axis=at)
        return table if costs is table.costs else replace(table, costs=costs)
