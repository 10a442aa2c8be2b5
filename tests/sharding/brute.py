"""What a search finds, by trying everything: every option of every node, each with the best homes.

Prices are computed here once more, from the moves and the work alone; that homes are independent of
each other once the options and the resting places are fixed is all that is taken for granted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache

from mithril.cost import SIMULATED
from mithril.errors import PlanError
from mithril.ir import Graph, Node, Phase, Value
from mithril.mesh import Mesh, Sharding
from mithril.sharding import Constraints, Layout, Resharder, collect, find_constraints
from mithril.sharding.layout import FREE
from mithril.sharding.move_prices import PRICE_UNIT, MovePrices
from mithril.sharding.objective import Objective
from mithril.sharding.option import Option
from mithril.sharding.search import Search
from mithril.sharding.trial import price_work
from mithril.sharding.widen import widen
from mithril.transform import cotangent_name, differentiate, gradient_of

PICOSECONDS = 1e12


class Everything:
    """All that may be chosen for a graph and its gradients, and what each choice costs."""

    def __init__(self, graph: Graph, mesh: Mesh, parameters: Sequence[str], search: Search) -> None:
        joint = (
            differentiate(graph, tuple(graph.outputs), tuple(parameters)) if parameters else graph
        )
        layouts = {value.name: Layout(FREE) for value in joint.inputs}
        layouts |= {cotangent_name(n): Layout(FREE) for n in graph.outputs if parameters}
        layouts |= {gradient_of(name): Layout(follows=name) for name in parameters}
        self.graph = joint
        self.given: Constraints = find_constraints(joint, mesh, layouts, True, search)
        self.resharder = Resharder(mesh, SIMULATED, True, search.refuses)
        self.candidates = collect(joint, self.given)
        (space,) = search.spaces
        wide = widen(self.candidates, joint, self.given, space)
        objective = Objective(joint, self.given, wide, MovePrices(self.resharder), space)
        self.rules, self.options = wide.rules, objective.options
        self.homes, self.rests = objective.homes, objective.rests
        self.move = cache(self.move)
        self.follow = {
            joint.outputs[name]: joint.input(layout.follows)
            for name, layout in self.given.outputs.items()
            if layout.follows
        }
        self.outputs = set(joint.outputs.values())
        self.users = {
            value: [(n, at) for n, at in uses if at not in self.rules[n].ignored]
            for value, uses in joint.uses().items()
        }
        self.makers = joint.producers()

    def count(self) -> int:
        """Return how many combinations of options and resting places there are."""
        return math.prod(map(len, self.options.values())) * math.prod(map(len, self.rests.values()))

    def work(self, node: Node, option: Option) -> float:
        """Return picoseconds of a node."""
        seconds = price_work(node, self.rules[node], self.resharder)(option)
        return math.inf if math.isinf(seconds) else round(seconds * PICOSECONDS)

    def move(self, value: Value, start: Sharding, goal: Sharding) -> float:
        """Return picoseconds of a move."""
        if start == goal:
            return 0.0
        try:
            return self.resharder.path(start, goal, value.type).price
        except PlanError:
            return math.inf

    def list_all(self) -> Iterator[tuple[dict[Node, Option], dict[Value, Sharding], float]]:
        """Yield every choice of options and resting places, and the picoseconds of the best homes."""
        nodes, kept = list(self.options), list(self.rests)
        known: dict[object, float] = {}
        for options in itertools.product(*self.options.values()):
            chosen = dict(zip(nodes, options, strict=True))
            work = sum(self.work(node, option) for node, option in chosen.items())
            for rests in itertools.product(*self.rests.values()):
                lies = dict(zip(kept, rests, strict=True))
                yield chosen, lies, work + sum(self.price(chosen, lies, known).values())

    def price(
        self, chosen: dict[Node, Option], lies: dict[Value, Sharding], known: dict[object, float]
    ) -> dict[object, float]:
        """Return picoseconds of the moves of each value, by its best home."""
        found = {}
        for (value, phase), homes in self.homes.items():
            if value in self.follow.values() and value not in self.rests:
                continue  # with what follows it
            users = [
                u
                for u in self.users.get(value, [])
                if value not in self.rests or u[0].phase == phase
            ]
            needs = tuple(chosen[node].operands[at] for node, at in users)
            goal = lies.get(self.follow.get(value)) if value in self.follow else None
            start = self.start(value, chosen, lies)
            key = (value, phase, start, needs, goal)
            if key not in known:
                known[key] = min(self.lie(value, h, start, users, needs, goal) for h in homes)
            found[value, phase] = known[key]
        return found

    def start(
        self, value: Value, chosen: dict[Node, Option], lies: dict[Value, Sharding]
    ) -> Sharding | None:
        """Return how a value is made or rests; None for as it is needed."""
        if value in self.rests:
            return lies[value]
        maker = self.makers.get(value)
        return None if maker is None else chosen[maker].results[maker.outputs.index(value)]

    def lie(
        self,
        value: Value,
        home: Sharding,
        start: Sharding | None,
        users: Sequence[tuple[Node, int]],
        needs: Sequence[Sharding],
        goal: Sharding | None,
    ) -> float:
        """Return picoseconds of the moves of a value with a home."""
        total = 0.0 if start is None else self.move(value, start, home)
        fixed = set()
        for (node, at), need in zip(users, needs, strict=True):
            if set(home.partial) - set(need.partial):
                return math.inf
            if any(dict(home.partial).get(a, r) != r or r != "sum" for a, r in need.partial):
                return math.inf
            if len({option.operands[at] for option in self.options[node]}) == 1:
                if need in fixed:
                    continue
                fixed.add(need)
            total += self.move(value, home, need)
        if value in self.outputs and home.partial:
            return math.inf
        return total + (self.move(value, home, goal) if goal is not None else 0.0)


__all__ = ["PRICE_UNIT", "Everything", "Phase"]
