"""The best way to lay out everything that nobody has laid out, and how far from the best it is.

The variables and prices are those of an ordinary choice (`objective`), over all candidates
(`widen`), with a variable more for where each parameter rests (`resting`). What is minimised, and
within what, is said by a `Search`; the bytes of a device are further sums of tables (`moments`).
The least memory is found first and then, within it, the least time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mithril.errors import PlanError
from mithril.ir import Graph, Phase, Value
from mithril.mesh import Sharding
from mithril.plan.search import BYTES, PICOSECONDS, SearchResult
from mithril.sharding.budget import Limit, minimise_largest, minimise_within
from mithril.sharding.candidates import Candidates
from mithril.sharding.choose import Choice, make_choice
from mithril.sharding.constraints import Constraints
from mithril.sharding.eliminate import Answer, Table, evaluate
from mithril.sharding.moments import Moment, list_moments
from mithril.sharding.move_prices import PRICE_UNIT, MovePrices
from mithril.sharding.objective import Objective, ValueUse
from mithril.sharding.search import ANNOTATIONS, COMMUNICATION, DATA, MEMORY, MIXED, TENSOR, Search
from mithril.sharding.widen import widen
from mithril.units import format_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a search has found.

    Args:
        choice: the decision.
        rests: where parameters rest that it has chosen that for.
        result: what it cost, and what it cannot cost less than.
        fetched: those of them that something uses in another sharding.
    """

    choice: Choice
    rests: dict[Value, Sharding]
    result: SearchResult

    fetched: frozenset[Value]


class Way:
    """A way to compute a graph; what is summed in a space is made once for all searches of it.

    Args:
        graph: the graph.
        given: what is said, and what is searched for.
        candidates: what the shardings that are said lead to.
        prices: of moves; the hardware of its resharder prices the work.
    """

    def __init__(
        self, graph: Graph, given: Constraints, candidates: Candidates, prices: MovePrices
    ) -> None:
        self.graph, self.given, self.prices = graph, given, prices
        self._candidates = candidates
        self._spaces: dict[str, tuple[Objective, list[Moment]]] = {}

    def sum_up(self, space: str) -> tuple[Objective, list[Moment]]:
        """Return what is summed in a space, and what a device holds there."""
        if space not in self._spaces:
            wide = widen(self._candidates, self.graph, self.given, space)
            objective = Objective(self.graph, self.given, wide, self.prices, space)
            self._spaces[space] = objective, list_moments(self.graph, objective)
        return self._spaces[space]


def find(way: Way, search: Search, below: float = math.inf) -> Found | None:
    """Return the best of the spaces that are searched; None if it is not below a known cost.

    Args:
        way: what is searched.
        search: what is asked for; its way may be one of another search for other costs or limits.
        below: that cost, in the unit of results.

    Raises:
        PlanError: nothing keeps to the limits.
    """
    tries = [_Try(way, space, search) for space in search.spaces]
    answers = [one.solve(below) for one in tries]
    if below < math.inf and all(math.isinf(answer.cost) for answer in answers):
        return None
    bound = min(answer.bound for answer in answers)
    if MIXED in search.spaces and not min(answers, key=lambda answer: answer.cost).is_exact:
        # What is known to be good of less may be better than what was met; the bound stays.
        for space in NARROW:
            tries.append(_Try(way, space, search))
            answers.append(tries[-1].solve(below))
    if all(math.isinf(answer.cost) for answer in answers):
        raise PlanError(tries[0].describe_failure())
    number = min(range(len(tries)), key=lambda i: answers[i].cost)
    return tries[number].finish(answers[number], bound)


class _Try:
    """A search in one space.

    Args:
        way: what is searched.
        space: one of `SPACES`.
        search: what is asked for.
    """

    def __init__(self, way: Way, space: str, search: Search) -> None:
        self._search, self._space, self._steps = search, space, way.prices.steps
        self._objective, self._moments = way.sum_up(space)
        self._tables = self._list_tables()

    def solve(self, below: float) -> Answer:
        """Return the best values of the variables; their cost in the unit of the tables.

        Args:
            below: a known cost, in the unit of results; the cost may be infinite if none is below.
        """
        domains, most = self._objective.domains, self._search.memory
        amounts = [list(moment.tables) for moment in self._moments]
        if self._search.objective != MEMORY:
            limits = [] if most is None else [Limit(m.tables, most) for m in self._moments]
            return minimise_within(
                domains, self._tables, limits, below=below * PRICE_UNIT, steps=self._steps
            )
        least = minimise_largest(domains, self._tables, amounts)
        if math.isinf(least.cost) or (most is not None and least.cost > most):
            return Answer({}, math.inf, least.bound)
        # The multipliers meet the limit up to rounding: a byte more is none.
        limits = [Limit(m.tables, max(least.cost, 1.0)) for m in self._moments]
        fastest = minimise_within(domains, self._tables, limits)
        picked = least.picked if math.isinf(fastest.cost) else fastest.picked
        return Answer(picked, max(evaluate(some, picked) for some in amounts), least.bound)

    def finish(self, answer: Answer, bound: float) -> Found:
        """Return what values of the variables stand for.

        Args:
            answer: the values, and what they cost.
            bound: of all spaces.
        """
        objective, picked = self._objective, answer.picked
        in_turn = evaluate(objective.list_tables(), picked)
        hidden = self._search.hidden
        price = evaluate(objective.list_tables(hidden), picked) if hidden else in_turn
        lower = price if answer.is_exact else min(answer.bound, price)
        choice = make_choice(objective, Answer(picked, price, lower))
        rests = {
            value: rests[picked.get(objective.variable[value], 0)]
            for value, rests in objective.rests.items()
        }
        fetched = frozenset(_list_fetched(choice, rests))
        choice = replace(choice, homes={**_list_homes(rests), **choice.homes})
        unit, of = (BYTES, 1.0) if self._search.objective == MEMORY else (PICOSECONDS, PRICE_UNIT)
        result = SearchResult(
            self._search.objective,
            self._space,
            unit,
            answer.cost / of,
            bound / of,
            in_turn / PRICE_UNIT / PER_SECOND,
            round(max(evaluate(moment.tables, picked) for moment in self._moments)),
            self._search.memory,
            sum(size > 1 for size in objective.domains),
            sum(math.log10(size) for size in objective.domains),
        )
        return Found(choice, rests, result, fetched)

    def describe_failure(self) -> str:
        """Return why nothing keeps to the limits, and what is the least possible."""
        amounts = [list(moment.tables) for moment in self._moments]
        least = minimise_largest(self._objective.domains, self._tables, amounts)
        most = self._search.memory
        if math.isinf(least.cost) or most is None or least.cost <= most:
            return (
                "auto_partition finds no plan without the collectives that partition_constraints "
                "refuse; allow some, or a larger max_all_reduce_size"
            )
        sizes = [evaluate(some, least.picked) for some in amounts]
        moment = self._moments[sizes.index(max(sizes))]
        return (
            f"auto_partition finds no plan within {format_bytes(most)} a device: the least is "
            f"{format_bytes(max(sizes))} {moment.name}, of which "
            f"{describe_largest(moment, least.picked)}; give more memory or devices, a smaller "
            f"batch, or checkpointing"
        )

    def _list_tables(self) -> list[Table]:
        """Return what is minimised, or comes second where that is memory."""
        objective, hidden = self._objective, self._search.hidden
        if self._search.objective != COMMUNICATION:
            return objective.list_tables(hidden)
        little = (replace(t, costs=t.costs * WORK_TIE) for t in objective.node_tables)
        return [*objective.list_moves(hidden), *objective.list_issued(), *little]


def _list_homes(rests: Mapping[Value, Sharding]) -> dict[ValueUse, Sharding]:
    """Return where parameters lie that the forward does not use."""
    return {(value, Phase.forward): rest for value, rest in rests.items()}


def _list_fetched(choice: Choice, rests: Mapping[Value, Sharding]) -> Iterator[Value]:
    """Yield what is used in another sharding than it rests in."""
    for (value, _), home in choice.homes.items():
        if value in rests and home != rests[value]:
            yield value
    for node, option in choice.options.items():
        ignored = choice.rules[node].ignored
        for at, value in enumerate(node.inputs):
            if value in rests and at not in ignored and option.operands[at] != rests[value]:
                yield value


NARROW = (DATA, TENSOR, ANNOTATIONS)
"""The spaces that are parts of `mixed`."""
PER_SECOND = 1e12
"""Picoseconds in a second."""
WORK_TIE = 1e-6
"""Of equal communication, the less work."""
LISTED = 3
"""So many tensors are named that take most."""


def describe_largest(moment: Moment, picked: Mapping[int, int]) -> str:
    """Return the tensors that take most at a moment, in words."""
    sizes: Counter[str] = Counter()
    for table, name in moment.sizes:
        sizes[name] += round(evaluate([table], picked))
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.most_common(LISTED))
