"""Choose, exactly, what every node splits and where every value lives.

Variables: one choice per node (a factor, a linear group or nothing for each mesh axis) and one home
sharding per value. The cost (`objective`) is the compute of the choices, plus the reshard from
where a value is produced to its home, once, plus the reshards from home to each consumer. It is
minimised by variable elimination (`eliminate`), which is exact; ties go to fewer collectives, then
to the earlier option. The body of a loop is part of the problem, at the price of all its runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mithril.errors import ShardingError
from mithril.ir import Graph, Node, Phase, Rule, Value
from mithril.mesh import Sharding
from mithril.sharding.candidates import Candidates
from mithril.sharding.constraints import Constraints
from mithril.sharding.eliminate import Answer
from mithril.sharding.move_prices import PRICE_UNIT, MovePrices
from mithril.sharding.narrow import minimise
from mithril.sharding.objective import Objective, ValueUse
from mithril.sharding.option import Option
from mithril.sharding.reshard import Resharder


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision.

    Args:
        rules: the sharding rule of each node.
        options: the option each node takes.
        homes: the sharding each value lives in; one kept at rest has a home in each phase.
        considered: the options each node had.
        price: predicted picoseconds of what could be chosen.
        bound: what no choice is cheaper than; the price itself if it is proved to be the cheapest.
        resharder: finds the moves between the shardings, at the prices that were compared.
    """

    rules: Mapping[Node, Rule]
    options: Mapping[Node, Option]
    homes: Mapping[ValueUse, Sharding]
    considered: Mapping[Node, Sequence[Option]]
    price: float
    bound: float
    resharder: Resharder

    @property
    def is_exact(self) -> bool:
        """Whether it is proved to be the cheapest."""
        return self.bound >= self.price

    def home(self, value: Value, phase: Phase = Phase.forward) -> Sharding | None:
        """Return where a value lives in a phase, None when nobody uses it."""
        later = self.homes.get((value, phase)) if phase != Phase.forward else None
        return later or self.homes.get((value, Phase.forward))

    def sizes(self, node: Node) -> Mapping[str, int]:
        """Return the global size of each factor of a node."""
        return self.rules[node].sizes


def choose(graph: Graph, given: Constraints, candidates: Candidates, prices: MovePrices) -> Choice:
    """Return the cheapest choice; see the module's text."""
    objective = Objective(graph, given, candidates, prices)
    return make_choice(objective, minimise(objective.domains, objective.list_tables()))


def make_choice(objective: Objective, answer: Answer) -> Choice:
    """Return the decision that values of variables stand for.

    Args:
        objective: whose variables they are.
        answer: the values, their price and its bound.

    Raises:
        ShardingError: an axis shall split what an op cannot split; the message is the op's own.
    """
    picked = answer.picked
    chosen = {
        node: options[picked.get(objective.variable[node], 0)]
        for node, options in objective.options.items()
    }
    _check_asked(chosen, objective.candidates)
    homes = {
        value_use: homes[picked.get(objective.variable[value_use], 0)]
        for value_use, homes in objective.homes.items()
    }
    return Choice(
        objective.candidates.rules, chosen, homes, objective.options,
        answer.cost / PRICE_UNIT, answer.bound / PRICE_UNIT, objective.resharder,
    )  # fmt: skip


def _check_asked(chosen: Mapping[Node, Option], candidates: Candidates) -> None:
    """Raise unless every axis that has to split what a rule proposes does.

    Raises:
        ShardingError: none of it can be split over an axis; the message is the op's own.
    """
    for node, axes in candidates.asked.items():
        if candidates.rules[node].may_gather:
            continue
        option = chosen[node]
        for axis in sorted(axes - set(option.factors) - set(option.linear)):
            types, count = [v.type for v in node.inputs], option.results[0].mesh.sizes[axis]
            reason = node.op.refusal(types, axis, count)
            raise ShardingError(f"{node.where()}: {reason}" if node.scope else reason)
