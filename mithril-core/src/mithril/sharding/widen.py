"""All candidates of a graph, for a search: any factor of any node, over every axis of devices.

The closure of `candidates` is run from every dimension of every value. What divides, or may be
padded, is a candidate; what a rule keeps whole is not, unless somebody's sharding has had the op
expanded. What was said stays forced where it was; nothing else is, so that computing copies is
always an alternative.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mithril.ir import Graph, Node, Value
from mithril.ir.rewrite import regions
from mithril.mesh import MICRO
from mithril.sharding.candidates import Candidates
from mithril.sharding.closure import Closure, collect_links, find_touching
from mithril.sharding.constraints import Constraints
from mithril.sharding.partial_sums import find_partial
from mithril.sharding.regions import links
from mithril.sharding.search import DATA, MIXED, TENSOR

Place = tuple[Value, int]
"""A dimension of a value."""


def widen(found: Candidates, graph: Graph, given: Constraints, space: str) -> Candidates:
    """Return the candidates of a space, and those that were found before.

    Args:
        found: what the shardings that were said lead to.
        graph: the graph.
        given: these shardings, and what is searched for.
        space: one of `SPACES`.
    """
    walk = _Walk(found, graph, given)
    batches, everything = list(_list_batches(graph, given)), list(_list_all(graph))
    factors = {node: dict(of) for node, of in found.factors.items()}
    names = [axis.name for axis in given.mesh.axes if axis.size > 1 and axis.name != MICRO]
    for axis in names:
        batch = {} if space == MIXED else walk.find(axis, batches)
        every = batch if space == DATA else walk.find(axis, everything)
        for node, able in every.items():
            left = able - batch.get(node, set()) if space == TENSOR else able
            wanted = left.union(factors[node].get(axis, ()))
            factors[node][axis] = tuple(f for f in found.rules[node].factors if f in wanted)
    copying = {
        axis: frozenset(n for n in factors if axis not in found.forced.get(n, {}))
        | found.copying.get(axis, frozenset())
        for axis in names
    }
    partial = {
        axis: find_partial(
            walk.nodes, walk.joints, axis, found.rules, factors, found.forced, copying[axis]
        )
        for axis in names
    }
    return replace(
        found,
        factors=factors,
        partial={**found.partial, **partial},
        copying={**found.copying, **copying},
    )


class _Walk:
    """Walks over a graph, from any dimensions."""

    def __init__(self, found: Candidates, graph: Graph, given: Constraints) -> None:
        self._given, self._rules = given, found.rules
        self.nodes = [n for part in regions(graph) for n in part.graph.nodes if not n.op.bodies]
        self.joints = list(links(graph))
        self._touching, self._linked = find_touching(self.nodes), collect_links(self.joints)

    def find(self, axis: str, seeds: list[Place]) -> dict[Node, set[str]]:
        """Return the factors that an axis may split, of the nodes that seeds lead to."""
        closure = Closure(
            self._given.mesh, axis, self._rules, self._touching, self._linked, frozenset(),
            self._given.pads,
        )  # fmt: skip
        closure.run(iter(seeds))
        for node, proposed in closure.proposed.items():
            closure.factors.setdefault(node, set()).update(proposed)
        return closure.factors


def _list_batches(graph: Graph, given: Constraints) -> Iterator[Place]:
    """Yield the leading dimension of each input that is data."""
    names = frozenset() if given.search is None else given.search.batches
    for value in graph.inputs:
        if value.name in names and value.type.rank:
            yield value, 0


def _list_all(graph: Graph) -> Iterator[Place]:
    for part in regions(graph):
        for value in part.graph.values():
            yield from ((value, dimension) for dimension in range(value.type.rank))
