"""What else was possible: the other ways to run the node that asks for a move, and their price.

A price here is local: the work of the node plus the moves of its operands and results, everything
around it staying as it was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mithril.errors import PlanError
from mithril.ir import Alternative, Node, Value
from mithril.mesh import Sharding
from mithril.sharding.choose import Choice
from mithril.sharding.option import Option
from mithril.sharding.reshard import PICOSECONDS
from mithril.sharding.trial import price_work

SHOWN = 3
"""How many alternatives are worth reading."""


_Surroundings = tuple[int, int, tuple[Sharding | None, ...]]
"""Which options a node has, which it takes, and where its operands and results live."""


class Alternatives:
    """The other ways to run nodes, found once for equal nodes in equal surroundings.

    Args:
        choice: what was chosen.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._known: dict[_Surroundings, tuple[Alternative, ...]] = {}

    def of(self, node: Node) -> tuple[Alternative, ...]:
        """Return the other ways to run a node, the cheapest first."""
        considered, taken = self._choice.considered[node], self._choice.options[node]
        if len(considered) == 1:
            return ()
        homes = (
            *(self._choice.home(value, node.phase) for value in node.inputs),
            *(self._choice.home(value) for value in node.outputs),
        )
        key = (id(considered), id(taken), homes)  # equal nodes share their options
        if key not in self._known:
            self._known[key] = _compare(node, self._choice)
        return self._known[key]


def _compare(node: Node, choice: Choice) -> tuple[Alternative, ...]:
    taken = choice.options[node]
    work = price_work(node, choice.rules[node], choice.resharder)
    base = _price(node, taken, choice, work)
    if base is None:
        return ()
    found = []
    for option in choice.considered[node]:
        if option is not taken:
            price = _price(node, option, choice, work)
            if price is not None:
                found.append(Alternative(_describe(node, option), price - base))
    found.sort(key=lambda other: other.seconds)
    return tuple(found[:SHOWN])


def _price(
    node: Node, option: Option, choice: Choice, work: Callable[[Option], float]
) -> float | None:
    """Return the seconds of an option where it stands, None when it cannot stand there."""
    try:
        moved = sum(
            choice.resharder.path(start, goal, value.type).price
            for start, goal, value in _moves(node, option, choice)
        )
    except PlanError:  # no path: the option would need a neighbour to change, too
        return None
    return work(option) + moved / PICOSECONDS


def _moves(
    node: Node, option: Option, choice: Choice
) -> Iterator[tuple[Sharding, Sharding, Value]]:
    for value, need in zip(node.inputs, option.operands, strict=True):
        yield choice.home(value, node.phase) or need, need, value
    for value, made in zip(node.outputs, option.results, strict=True):
        yield made, choice.home(value) or made, value


def _describe(node: Node, option: Option) -> str:
    operands = ", ".join(sharding.describe() for sharding in option.operands)
    return f"{node.op.name} on {operands}" if operands else node.op.name
