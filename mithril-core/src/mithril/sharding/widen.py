"""All candidates of a graph, for a search: any factor of any node, over every axis of devices.

The closure of `candidates` is run from every dimension of every value. What divides, or may be
padded, is a candidate; what a rule keeps whole is not, unless somebody's sharding has had the op
expanded. What was said stays forced where it was; nothing else is, so that computing copies is
always an alternative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.rewrite import regions, walk
from mithril.mesh import Axis
from mithril.ops.alternatives import ALTERNATIVES, makes_masked_scores
from mithril.sharding.candidates import Candidates, cut_axis
from mithril.sharding.closure import Closure, collect_links, find_touching
from mithril.sharding.constraints import Constraints
from mithril.sharding.partial_sums import find_partial
from mithril.sharding.regions import links
from mithril.sharding.search import ANNOTATIONS, DATA, FULLY_SHARDED, MIXED, TENSOR, Search

Place = tuple[Value, int]
"""A dimension of a value."""
MOST_AXES = 3
"""So many axes has a mesh at most whose axes a search has cut."""
LEAST_WORK = 0.01
"""Of all work, what an op does for which axes are cut."""
LARGE = 0.5
"""Of the largest tensor that a forward makes, what one takes that is expanded."""
MUCH_WORK = 0.1
"""Of all work, what an op does that is expanded though what it takes is small."""


def widen(found: Candidates, graph: Graph, given: Constraints, space: str) -> Candidates:
    """Return the candidates of a space, and those that were found before.

    Args:
        found: what the shardings that were said lead to.
        graph: the graph.
        given: these shardings, and what is searched for.
        space: one of `SPACES`.
    """
    if space == ANNOTATIONS:
        return found
    of = _Walk(found, graph, given)
    batches, everything = list(_list_batches(graph, given)), list(_list_all(graph))
    factors = {node: dict(of) for node, of in found.factors.items()}
    names = [axis.name for axis in _list_axes(given)]
    for axis in names:
        batch = {} if space == MIXED else of.find(axis, batches)
        every = batch if space in (DATA, FULLY_SHARDED) else of.find(axis, everything)
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
            of.nodes, of.joints, axis, found.rules, factors, found.forced, copying[axis]
        )
        for axis in names
    }
    return replace(
        found,
        factors=factors,
        partial={**found.partial, **partial},
        copying={**found.copying, **copying},
    )


def find_cuts(found: Candidates, graph: Graph, given: Constraints) -> dict[str, tuple[int, int]]:
    """Return for axes that are larger than a factor the sub-axes that could split it.

    Heads of an attention, say, which are fewer than devices. Each axis more multiplies the ways in
    which a value may lie, so it is done for what takes a good part of the work, and not beyond
    `MOST_AXES`.

    Args:
        found: what the shardings that were said lead to.
        graph: the graph.
        given: these shardings, and what is searched for.
    """
    axes = _list_axes(given)
    if not _is_wide(given) or len(axes) >= MOST_AXES:
        return {}
    work = _count_work(graph)
    least = LEAST_WORK * sum(work.values())
    rules = [found.rules[node] for node, flops in work.items() if flops >= least]
    cuts: dict[str, tuple[int, int]] = {}
    for axis in axes:
        sizes = {
            math.gcd(size, axis.size)
            for rule in rules
            for factor, size in rule.sizes.items()
            if size % axis.size and factor not in rule.whole
            if size < axis.size or not rule.may_pad(factor)
        }
        major = max(sizes, default=1)
        if major > 1 and axis.origin not in cuts and len(axes) + len(cuts) < MOST_AXES:
            cuts[axis.origin] = cut_axis(given.mesh, axis, major)
    return cuts


def find_expandable(found: Candidates, graph: Graph, given: Constraints) -> frozenset[Node]:
    """Return the fused ops that may be split further if they are expanded, of the largest.

    The loss of logits over a vocabulary, say, or a recurrent layer over its units. An expansion
    takes longer than the op does where it is not split, so that it pays for what is largest, or
    does much of the work, if at all.

    Args:
        found: what the shardings that were said lead to.
        graph: the graph.
        given: these shardings, and what is searched for.
    """
    if not _is_wide(given):
        return frozenset()
    made = (v for node in found.rules if node.phase == Phase.forward for v in node.outputs)
    least = LARGE * max((value.type.nbytes for value in made), default=0)
    work = _count_work(graph)
    much = MUCH_WORK * sum(work.values())
    return frozenset(
        node
        for node, rule in found.rules.items()
        if rule.expandable
        and (
            any(value.type.nbytes >= least for value in node.inputs) or work.get(node, 0) > much > 0
        )
    )


def find_confined(
    found: Candidates, graph: Graph, given: Constraints, *, looks_into: bool = False
) -> frozenset[Node]:
    """Return the nodes that cannot be split over all devices, and could be in another way.

    Attention of few samples with few heads, say, which could be split along its sequence; all of it
    where a search splits sequences.

    Args:
        found: what the shardings that were said lead to.
        graph: the graph.
        given: these shardings, and what is searched for.
        looks_into: whether a compiler runs what an op consists of, and no kernel of its own.
    """
    if given.search is not None and given.search.sequence_axes:
        return frozenset(node for node in found.rules if type(node.op) in ALTERNATIVES)
    if not _is_wide(given):
        return frozenset()
    devices = math.prod(axis.size for axis in _list_axes(given))
    return frozenset(
        node
        for node, rule in found.rules.items()
        if type(node.op) in ALTERNATIVES
        and (
            (looks_into and makes_masked_scores(node.op))
            or math.prod(size for f, size in rule.sizes.items() if f not in rule.whole) < devices
        )
    )


def _count_work(graph: Graph) -> dict[Node, int]:
    """Return the arithmetic of each node, as often as it runs."""
    nodes = ((node, times) for node, times in walk(graph) if not node.op.bodies)
    return {node: times * node.cost().flops for node, times in nodes}


def _list_axes(given: Constraints) -> list[Axis]:
    """Return the axes of devices over which a search may split work."""
    return (given.search or Search()).list_axes(given.mesh)


def _is_wide(given: Constraints) -> bool:
    """Whether more than batches is split by a search."""
    return given.search is not None and bool({MIXED, TENSOR}.intersection(given.search.spaces))


class _Walk:
    """Walks over a graph, from any dimensions."""

    def __init__(self, found: Candidates, graph: Graph, given: Constraints) -> None:
        self._given, self._rules = given, found.rules
        self.nodes = [n for part in regions(graph) for n in part.graph.nodes if not n.op.bodies]
        self.joints = list(links(graph))
        self._touching, self._linked = find_touching(self.nodes), collect_links(self.joints)
        self._known: dict[tuple[int, int], dict[Node, set[str]]] = {}

    def find(self, axis: str, seeds: list[Place]) -> dict[Node, set[str]]:
        """Return the factors that an axis may split, of the nodes that seeds lead to.

        Axes of one size may split the same; lists of seeds are told apart by what they are.
        """
        key = self._given.mesh.sizes[axis], id(seeds)
        if key not in self._known:
            self._known[key] = self._follow(axis, seeds)
        return self._known[key]

    def _follow(self, axis: str, seeds: list[Place]) -> dict[Node, set[str]]:
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
