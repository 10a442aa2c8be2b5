"""The choice of shardings as an integer program, which HiGHS solves by way of `scipy.optimize.milp`.

This is how autoparallel asks the question (github.com/meta-pytorch/autoparallel, `optimize_sharding.py`): a
binary variable for each option of a node, and one for each pair of an option and what one of its operands
comes as, which bears the price of both together. Each choice is made once, and the pairs of an operand
agree with the choices at both ends. Over tables T of costs (`mithril.sharding.eliminate`) that is

    minimise   sum over T and entries e of T[e] y[T, e]
    where      sum over i of x[v, i] = 1                                for each variable v
               sum over the entries e of T with e(v) = i of y[T, e] = x[v, i]   for each v of T and i
               x binary, y >= 0; no y where T[e] is infinite

y is 0 or 1 where x is, so that it need not be declared so. Within limits, sums of tables of one variable
are rows more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from mithril.sharding.budget import Limit
from mithril.sharding.eliminate import Table

ENDED_IN_TIME = 1
"""HiGHS's status of a solution that time ended."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What HiGHS found.

    Args:
        cost: of the best choice; infinite if there is none.
        bound: what no choice is below.
        is_ended: whether time ended the solution.
        variables: of the program.
        rows: of the program.
        build_seconds: to write it.
        solve_seconds: to solve it.
    """

    cost: float
    bound: float
    is_ended: bool
    variables: int
    rows: int
    build_seconds: float
    solve_seconds: float


@dataclass(slots=True)
class _Rows:
    """Rows of a sparse matrix, and what each sums up to."""

    count: int = 0
    places: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    lower: list[np.ndarray] = field(default_factory=list)
    upper: list[np.ndarray] = field(default_factory=list)

    def add(self, lower: np.ndarray, upper: np.ndarray) -> int:
        """Add rows that lie between bounds, and return the first."""
        first, self.count = self.count, self.count + len(lower)
        self.lower.append(lower)
        self.upper.append(upper)
        return first

    def put(self, rows: np.ndarray, columns: np.ndarray, factor: np.ndarray | float) -> None:
        """Add entries."""
        self.places.append((rows, columns, np.broadcast_to(factor, rows.shape)))


def solve_program(
    domains: Sequence[int],
    tables: Sequence[Table],
    limits: Sequence[Limit] = (),
    seconds: float = math.inf,
) -> Solution:
    """Return the least sum of tables within limits, by an integer program.

    Args:
        domains: number of values of each variable.
        tables: what is summed; `inf` forbids a combination.
        limits: sums of tables of one variable, and what they may be at most.
        seconds: that solving may take.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    start = time.perf_counter()
    first = np.concatenate([[0], np.cumsum(domains)]).astype(int)
    prices = [np.zeros(first[-1])]
    allowed = np.ones(first[-1])
    rows, constant, count = _Rows(), 0.0, int(first[-1])
    one = np.ones(len(domains))
    rows.add(one, one)
    rows.put(np.repeat(np.arange(len(domains)), domains), np.arange(count), 1.0)
    for table in tables:
        if not table.variables:
            constant += float(table.costs)
        elif len(table.variables) == 1:
            own = slice(first[table.variables[0]], first[table.variables[0] + 1])
            prices[0][own] += np.where(np.isinf(table.costs), 0.0, table.costs)
            allowed[own] *= np.isfinite(table.costs)
        else:
            entries = np.nonzero(np.isfinite(table.costs))
            columns = np.arange(len(entries[0])) + count
            count += len(columns)
            prices.append(table.costs[entries])
            for variable, at in zip(table.variables, entries, strict=True):
                nothing = np.zeros(domains[variable])
                begin = rows.add(nothing, nothing)
                rows.put(begin + at, columns, 1.0)
                values = np.arange(domains[variable])
                rows.put(begin + values, first[variable] + values, -1.0)
    for limit in limits:
        fixed = sum(float(table.costs) for table in limit.tables if not table.variables)
        begin = rows.add(np.array([-np.inf]), np.array([1.0 - fixed / limit.most]))
        for table in limit.tables:
            for variable in table.variables:
                columns = first[variable] + np.arange(domains[variable])
                rows.put(np.full(len(columns), begin), columns, table.costs / limit.most)
    costs = np.concatenate(prices)
    upper = np.ones(count)
    upper[: first[-1]] = allowed
    at, columns, values = (np.concatenate(some) for some in zip(*rows.places, strict=True))
    matrix = csr_array((values, (at, columns)), shape=(rows.count, count))
    scale = _find_scale(costs, tables)
    built = time.perf_counter()
    found = milp(
        costs / scale,
        integrality=np.arange(count) < first[-1],
        bounds=Bounds(np.zeros(count), upper),
        constraints=LinearConstraint(
            matrix, np.concatenate(rows.lower), np.concatenate(rows.upper)
        ),
        options={"mip_rel_gap": 0.0, **({} if math.isinf(seconds) else {"time_limit": seconds})},
    )
    bound = -math.inf if found.mip_dual_bound is None else found.mip_dual_bound
    return Solution(
        math.inf if found.x is None else found.fun * scale + constant,
        bound * scale + constant,
        found.status == ENDED_IN_TIME,
        count,
        rows.count,
        built - start,
        time.perf_counter() - built,
    )


def _find_scale(costs: np.ndarray, tables: Sequence[Table]) -> float:
    """Return the unit of costs in which HiGHS's tolerances, which are absolute, are small ones."""
    least = sum(float(table.costs.min()) for table in tables if np.isfinite(table.costs).any())
    return max(least / 1e3, float(np.abs(costs).max(initial=0.0)) / 1e6) or 1.0


__all__ = ["Solution", "solve_program"]
