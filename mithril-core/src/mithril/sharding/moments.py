"""What a device holds at the moments between phases, as sums of tables over what is chosen.

At the start of the backward, of the update, and at the end, it is known what must be in memory:
inputs that nobody gave up, or that are used later on, what was made before and is used after, and
outputs. A tensor takes the bytes of its home there, a parameter of where it rests. What is in
memory only while an op runs is not seen; a plan is measured in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mithril.cost.devices import local_bytes
from mithril.ir import Graph, Node, Phase, Value
from mithril.mesh import Sharding
from mithril.sharding.eliminate import Table
from mithril.sharding.objective import Item, Objective
from mithril.types import TensorType


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a run.

    Args:
        name: when it is.
        sizes: the bytes of what is in memory then, with its name.
    """

    name: str
    sizes: tuple[tuple[Table, str], ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        """The bytes of what is in memory then."""
        return tuple(table for table, _ in self.sizes)


def list_moments(graph: Graph, objective: Objective) -> list[Moment]:
    """Return what a device holds at each moment, in order.

    Args:
        graph: whose tensors they are.
        objective: how these may lie.
    """
    phases = [phase for phase in Phase if any(node.phase == phase for node in graph.nodes)]
    sizes = _Sizes(graph, objective)
    found = [
        Moment(f"at the start of the {phase}", tuple(sizes.list_alive(phase)))
        for phase in phases[1:]
    ]
    return [*found, Moment("at the end", tuple(sizes.list_alive(None)))]


class _Sizes:
    """The bytes of values, by how they may lie."""

    def __init__(self, graph: Graph, objective: Objective) -> None:
        self._graph, self._objective = graph, objective
        self._given_up = objective.given.search.given_up if objective.given.search else frozenset()
        self._producers = graph.producers()
        self._last = _find_last_uses(graph)
        self._sizes: dict[tuple[TensorType, int], tuple[tuple[Sharding, ...], np.ndarray]] = {}

    def list_alive(self, phase: Phase | None) -> Iterator[tuple[Table, str]]:
        """Yield the bytes of what is alive at the start of a phase, None for at the end."""
        rank = len(Phase) if phase is None else list(Phase).index(phase)
        leaving = {self._graph.outputs[name]: name for name in self._graph.outputs}
        for value in self._graph.values():
            maker = self._producers.get(value)
            if maker is None:
                is_alive = value.name not in self._given_up or self._last.get(value, -1) >= rank
            else:
                made = list(Phase).index(maker.phase) < rank
                is_needed = value in leaving or self._last.get(value, -1) >= rank
                is_alive = made and is_needed and not _is_view(maker)
            if is_alive:
                name = value.name or (f"{maker.op.name} in {maker.scope}" if maker else "")
                yield self._size(value, leaving.get(value)), name

    def _size(self, value: Value, output: str | None) -> Table:
        """Return the bytes of a value by where it lives, of an output by how it leaves."""
        given = self._objective.given
        if output is not None:
            layout = given.of_output(output)
            if layout.follows is not None:
                return self._measure(value.type, *self._find(self._graph.input(layout.follows)))
            if layout.leaves is not None:
                return self._measure(value.type, None, (layout.leaves,))
        return self._measure(value.type, *self._find(value))

    def _find(self, value: Value) -> tuple[Item | None, tuple[Sharding, ...]]:
        """Return the variable of how a value lies, and what it may be."""
        objective, given = self._objective, self._objective.given
        if value in objective.rests:
            return value, objective.rests[value]
        existing = given.of(value).resting or given.of(value).existing
        if existing is not None:
            return None, (existing,)
        homes = objective.homes.get((value, Phase.forward))
        whole = Sharding.replicated(given.mesh, value.type.rank)
        return ((value, Phase.forward), homes) if homes else (None, (whole,))

    def _measure(
        self, type: TensorType, item: Item | None, shardings: tuple[Sharding, ...]
    ) -> Table:
        key = type, id(shardings)
        if key not in self._sizes:
            sizes = [float(local_bytes(type, sharding)) for sharding in shardings]
            self._sizes[key] = shardings, np.array(sizes)
        found = self._sizes[key][1]
        if item is None or len(found) == 1:
            return Table((), np.array(found[0]))
        return Table((self._objective.variable[item],), found)


def _is_view(node: Node) -> bool:
    """Whether what a node makes may be in the memory of what it takes."""
    return node.op.is_view


def _find_last_uses(graph: Graph) -> dict[Value, int]:
    """Return the number of the last phase that uses each value, or what is a view of it."""
    phases, last = list(Phase), dict[Value, int]()
    for node in reversed(graph.nodes):
        later = phases.index(node.phase)
        if _is_view(node):
            later = max([later, *(last.get(value, -1) for value in node.outputs)])
        for value in node.inputs:
            last[value] = max(last.get(value, -1), later)
    return last
