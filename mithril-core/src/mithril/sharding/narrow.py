"""Fewer values for each variable, where a table of the elimination would outgrow its cap.

Costs are shifted between tables until the sum of their least entries, a lower bound, is high
(`diffuse`). It says of each value by how much every choice with that value is above the bound. The
best choice of those values that are within a margin is found by elimination; if it is within the
margin itself, it is the best of all. Otherwise it is a known choice, and a value that takes the
bound to where that is or above is in no better one: it is left out. What is left is eliminated as
soon as its tables stay below the cap; costs are shifted on among it till then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mithril.sharding.diffuse import Diffusion, Ends, Messages, find_groups, find_pairs
from mithril.sharding.eliminate import (
    TABLE_CAP,
    Answer,
    Steps,
    Table,
    eliminate,
    evaluate,
    reduce,
)
from mithril.sharding.order import outgrows

SWEEPS = 12
"""So many times costs go forward and backward before values are left out."""
ROUNDS = 12
"""So many times that is done at most."""
ALIKE = 3
"""Variables are first taken to be alike that look so so many steps around."""
COARSE = 4
"""So many rounds are done with these groups."""
FEW = 0.5
"""It is worth while where groups are such a part of the variables."""
WIDEST = 2.0**-5
"""A choice that is further above the bound than such a part of it tells nothing of margins."""
CLOSE = 2.0**-10
"""A choice is the best, as a rule, that is above the bound by no more than such a part of it."""
STEPS = (2.0**-3, 2.0**-6, 2.0**-9)
"""Margins that are tried, as parts of what is between the bound and the known choice."""
LITTLE = 0.1
"""The last round is one that closes no such part of that, and leaves out no such part of values."""
SHARE = 16
"""Tables of a first choice have such a part of the entries that are allowed."""
NEAR = 1e-9
"""Choices are equally good that differ by no more than such a part."""
LARGE = 4
"""Tables may outgrow the cap if so many of the largest variables do."""

Values = Sequence[np.ndarray]
"""For each variable the numbers of some of its values; those of variables alike are one array."""


def minimise(
    domains: Sequence[int],
    tables: Sequence[Table],
    cap: int = TABLE_CAP,
    steps: Steps | None = None,
    below: float = math.inf,
) -> Answer:
    """Return the minimising value of each variable, the minimum, and a bound of it.

    Where no table outgrows the cap this is `eliminate`, whose arguments are the others.

    Args:
        domains: number of values of each variable.
        tables: cost tables; their sum is minimised.
        cap: largest table, in entries.
        steps: what was computed before, of arrays that are the same objects, and how much.
        below: what a choice has to cost less than; the answer's cost may be infinite if none does.
    """
    steps, scopes = steps or Steps(), [table.variables for table in tables]
    is_paired = max(map(len, scopes), default=0) <= 2
    is_large = is_paired and max(domains, default=1) ** LARGE > cap
    if is_large and outgrows(domains, scopes, cap):
        return _Narrowing(domains, tables, cap, steps, below).run()
    best = eliminate(domains, tables, cap, steps)
    if best.is_exact or not is_paired:
        return best
    narrowing = _Narrowing(domains, tables, cap, steps, below)
    narrowing.note(best)
    return narrowing.run()


class _Narrowing:
    """A minimisation over fewer and fewer values.

    Arguments are those of `minimise`.
    """

    def __init__(
        self,
        domains: Sequence[int],
        tables: Sequence[Table],
        cap: int,
        steps: Steps,
        below: float,
    ) -> None:
        self._below = below
        self._all, self._cap, self._work = tables, cap, steps.work
        self._reduced = reduce(domains, tables, steps)
        self._tables = self._reduced.tables
        self._scopes = [table.variables for table in self._tables]
        self._left = _list_all(self._reduced.domains)
        self._messages: dict[Ends, Messages] | None = None
        self._picked: dict[int, int] = {}
        self._met: dict[int, int] | None = None  # a better choice of the variables that are left
        self._cost, self._bound = math.inf, -math.inf

    def note(self, answer: Answer) -> None:
        """Note a choice, and a bound of all, before anything is known."""
        self._picked, self._cost, self._bound = answer.picked, answer.cost, answer.bound

    def run(self) -> Answer:
        """Return the best choice, and a bound of all."""
        if self._outgrows(self._left):
            self._leave_out_most()
        if self._bound < self._find_limit():
            # Every better choice is among the values that are left.
            rest = self._solve(_list_all([len(some) for some in self._left]), self._cap)
            self._bound = max(self._bound, min(rest.bound, self._cost, self._below))
        is_best = self._bound >= self._find_limit()
        if is_best and self._cost >= self._below:
            return Answer({}, math.inf, self._below)
        picked = self._picked if self._met is None else self._reduced.complete(self._met)
        cost = evaluate(self._all, picked)
        return Answer(picked, cost, cost if is_best else self._bound)

    def _leave_out_most(self) -> None:
        """Leave out values until what is left can be eliminated, or nothing more is found."""
        is_known = math.isfinite(self._find_limit())
        for number in range(ROUNDS):
            before, held = self._find_limit() - self._bound, _count(self._left)
            least, more = self._diffuse(is_coarse=number < COARSE)
            self._bound = max(self._bound, least)
            is_met = self._is_met(least, number) or (number == 0 and is_known)
            margin = -math.inf if is_met else self._seek(least, more)
            few = _keep(more, STEPS[-1] * WIDEST * abs(least))
            if math.isinf(self._cost) and number >= COARSE and all(map(len, few)):
                self._solve(few, self._cap // SHARE)
            gap = self._find_limit() - least
            if margin >= gap or not self._leave_out(_keep(more, gap)):
                self._bound = min(self._cost, self._below)
                break
            if not self._outgrows(self._left):
                break
            gains = before - (self._find_limit() - self._bound) > LITTLE * before
            if number >= COARSE and not gains and _count(self._left) > (1.0 - LITTLE) * held:
                break

    def _is_met(self, least: float, number: int) -> bool:
        """Whether a better choice than the known one is hardly met; of that nothing is proved."""
        is_close = number < COARSE and self._find_limit() - least < CLOSE * abs(least)
        return is_close or self._below <= self._cost < math.inf

    def _find_limit(self) -> float:
        """Return what a choice has to be below to be worth to be known."""
        known = min(self._cost, self._below)
        return known - NEAR * abs(known) if math.isfinite(known) else known

    def _diffuse(self, *, is_coarse: bool) -> tuple[float, list[np.ndarray]]:
        """Return a bound, and for each value that is left how much higher it is with that one."""
        pairs = find_pairs([len(some) for some in self._left], self._tables)
        groups: Sequence[int] = range(len(self._left))
        if is_coarse:
            alike = find_groups(pairs, ALIKE)
            groups = alike if len(set(alike)) < FEW * len(groups) else groups
        diffusion = Diffusion(pairs, groups, self._messages)
        for _ in range(SWEEPS):
            diffusion.sweep()
        self._messages = diffusion.list_messages()
        least, more = diffusion.measure()
        # What one of a group keeps, all keep: they stay alike, and share what is computed of them.
        kept: dict[int, np.ndarray] = {}
        for kind, costs in more.items():
            known = kept.get(kind.group)
            kept[kind.group] = costs if known is None else np.minimum(known, costs)
        return least, [kept[kind.group] for kind in diffusion.kinds]

    def _seek(self, least: float, more: Values) -> float:
        """Note the best choice of values within a margin, and return that; nothing of -inf."""
        widest = min(self._find_limit() - least, WIDEST * abs(least))
        for part in STEPS:
            margin = part * widest
            kept = _keep(more, margin)
            if all(map(len, kept)) and not self._outgrows(kept):
                self._solve(kept, self._cap)
                if math.isfinite(self._cost):
                    return margin
        return -math.inf

    def _outgrows(self, values: Values) -> bool:
        return outgrows([len(some) for some in values], self._scopes, self._cap)

    def _solve(self, values: Values, cap: int) -> Answer:
        """Note the best choice of some of the values that are left, and return it."""
        domains = [len(some) for some in values]
        tables = _leave_out_settled(_restrict(self._tables, values))
        found = eliminate(domains, tables, cap, Steps(self._work))
        if found.cost < self._cost or not (self._picked or self._met is not None):
            picked = found.picked | {v: 0 for v, size in enumerate(domains) if size == 1}
            self._met = {v: int(self._left[v][values[v][at]]) for v, at in picked.items()}
            self._cost = found.cost
        return found

    def _leave_out(self, kept: Values) -> bool:
        """Go on with some of the values that are left; return whether each variable has one."""
        known: dict[tuple[int, int], np.ndarray] = {}
        if not all(map(len, kept)):
            return False
        for some, left in zip(kept, self._left, strict=True):
            if (id(some), id(left)) not in known:
                known[id(some), id(left)] = left[some]
        self._left = [known[id(k), id(left)] for k, left in zip(kept, self._left, strict=True)]
        self._tables = _restrict(self._tables, kept)
        self._messages = {
            (a, b): (first[kept[a]], second[kept[b]])
            for (a, b), (first, second) in (self._messages or {}).items()
        }
        return True


def _list_all(domains: Sequence[int]) -> Values:
    ranges = {size: np.arange(size) for size in set(domains)}
    return [ranges[size] for size in domains]


def _keep(more: Values, margin: float) -> Values:
    """Return the values that cost no more than a margin; one array of those of equal arrays."""
    known: dict[int, np.ndarray] = {}
    for costs in more:
        if id(costs) not in known:
            known[id(costs)] = np.flatnonzero(costs <= margin)
    return [known[id(costs)] for costs in more]


def _count(values: Values) -> int:
    return sum(map(len, values))


def _restrict(tables: Sequence[Table], values: Values) -> list[Table]:
    """Return tables over some values; those that were one array are one if the values are."""
    known: dict[tuple[int, ...], np.ndarray] = {}
    found = []
    for table in tables:
        kept = [values[variable] for variable in table.variables]
        key = (id(table.costs), *map(id, kept))
        if key not in known:
            costs = table.costs
            for axis, some in enumerate(kept):
                if len(some) < costs.shape[axis]:
                    costs = costs.take(some, axis=axis)
            known[key] = costs
        found.append(Table(table.variables, known[key]))
    return found


def _leave_out_settled(tables: Sequence[Table]) -> list[Table]:
    """Return tables over the variables that have several values; equal arrays stay one array.

    A dimension of one entry chooses nothing, and NumPy has no more than 64 of them.
    """
    known: dict[int, np.ndarray] = {}
    found = []
    for table in tables:
        costs = known.setdefault(id(table.costs), table.costs.squeeze())
        sizes = zip(table.variables, table.costs.shape, strict=True)
        found.append(Table(tuple(v for v, size in sizes if size > 1), costs))
    return found
