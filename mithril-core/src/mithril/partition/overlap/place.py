"""Places the collectives of a program: where each starts, and where it is waited for.

Each step is kept only if the program is predicted to take less time with it: `defer_uncritical` has
what nothing but a result waits for be done last, `advance` starts collectives one block ahead, and
`postpone` puts work behind those that cannot start earlier. Then what was moved becomes a start and
a wait right before the first use of the results. A collective that was not moved stays as it is: it
starts where it stands, and is waited for where it is first used. What is scattered keeps its
operands in memory until it is waited for; so that is done one block later, or up to four, the first
after which it is predicted to have ended. Within a limit of memory updates are not deferred, which
would keep gradients (`defer_results`, before there is a limit to keep to).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.cost.hidden import Hiding, find_hiding
from mithril.cost.streams import Pricing
from mithril.ir import Graph, Node, Phase
from mithril.ir.rewrite import all_nodes, map_bodies
from mithril.ops.collective import ReduceScatter, collective_of
from mithril.partition.overlap.asked import BUCKET, NONE, Overlap
from mithril.partition.overlap.bucket import bucket_blocks
from mithril.partition.overlap.defer import defer_uncritical
from mithril.partition.overlap.describe import say_hidden
from mithril.partition.overlap.postpone import postpone
from mithril.partition.overlap.starts import advance
from mithril.partition.overlap.stretches import find_stretches
from mithril.partition.overlap.waits import place_waits, wait_at_once
from mithril.plan import Program

AHEAD = (1, 2, 3, 4)
"""After so many blocks what is scattered is waited for: the first that costs no time."""
SLACK = 1e-6
"""The part of a program's time that a wait may cost."""


def place_collectives(
    program: Program, pricing: Pricing, asked: Overlap, room: Sequence[int] | None = None
) -> Program:
    """Return a program that computes the same with its collectives beside what computes.

    Each collective says in its cause how much of it is hidden, and behind what.

    Args:
        program: a local one.
        pricing: says what takes how long.
        asked: the strategy.
        room: for each node of the program the bytes that may be in memory besides what is there
            while it runs; None for any number. With it, loops stay as they are.
    """
    if asked.strategy == NONE:
        return keep_collectives(replace(program, graph=wait_at_once(program.graph)), pricing)
    best = find_order(program.graph, pricing, asked, room)
    if not best.hiding.taken:
        return program
    return replace(program, graph=_Placing(pricing).wait(best.tell_hidden()))


def find_order(
    graph: Graph, pricing: Pricing, asked: Overlap, room: Sequence[int] | None = None
) -> Ordered:
    """Return a graph in the order in which its collectives start, with what of them is hidden.

    Args:
        graph: a local one.
        pricing: says what takes how long.
        asked: the strategy; not `none`.
        room: as of `place_collectives`.
    """
    is_forced = asked.strategy == BUCKET
    if room is not None:
        return _find_order(graph, _Placing(pricing, is_forced), room)
    key = find_order, graph, is_forced
    return pricing.find_once(key, lambda: _find_order(graph, _Placing(pricing, is_forced), None))


def _find_order(graph: Graph, placing: _Placing, room: Sequence[int] | None) -> Ordered:
    best = Ordered.of(graph, placing.pricing)
    if not best.hiding.taken:
        return best
    if room is None:
        best = placing.defer(best)
    best = placing.advance(best, room)
    return placing.postpone(best) if room is None else best


def defer_results(program: Program, pricing: Pricing) -> Program:
    """Return a program in which what only a result waits for is done last, if that takes less time.

    Updates stay where they are: gradients would be in memory until the end.

    Args:
        program: a local one, with every collective where its result is first needed.
        pricing: says what takes how long.
    """
    before = Ordered.of(program.graph, pricing)
    return replace(program, graph=_Placing(pricing).defer(before, with_updates=False).graph)


def keep_collectives(program: Program, pricing: Pricing) -> Program:
    """Return a program with its collectives where they are; each says how much of it is hidden.

    Args:
        program: a local one.
        pricing: says what takes how long.
    """
    return replace(program, graph=Ordered.of(program.graph, pricing).tell_hidden().graph)


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """A graph with what of its communication is hidden, and the collectives that were moved."""

    graph: Graph
    hiding: Hiding
    moved: frozenset[Node] = frozenset()

    @staticmethod
    def of(graph: Graph, pricing: Pricing, moved: Collection[Node] = ()) -> Ordered:
        """Return a graph, measured."""
        return Ordered(graph, find_hiding(graph, pricing), frozenset(moved))

    def tell_hidden(self) -> Ordered:
        """Return it with collectives that say how much of each is hidden."""
        told: dict[Node, Node] = {}
        graph = say_hidden(self.graph, self.hiding, told)
        return Ordered(graph, self.hiding, frozenset(told[node] for node in self.moved))


@dataclass(frozen=True, slots=True)
class _Placing:
    """The steps of placing.

    Args:
        pricing: says what takes how long.
        is_forced: whether starts are moved, and travel together, whatever that is to bring.
    """

    pricing: Pricing
    is_forced: bool = False

    def defer(self, before: Ordered, *, with_updates: bool = True) -> Ordered:
        """Have what only a result waits for be done last."""
        return self._choose(before, defer_uncritical(before.graph, with_updates=with_updates), ())

    def advance(self, before: Ordered, room: Sequence[int] | None) -> Ordered:
        """Start collectives one block ahead."""
        moved, pricing = set[Node](), self.pricing

        def change(graph: Graph, is_body: bool = True) -> Graph:
            if is_body and room is not None:
                return graph
            nodes = tuple(map_bodies(node, change) for node in graph.nodes)
            made = Graph(graph.inputs, nodes, graph.outputs)
            found, starts = advance(made, before.hiding, room)
            if self.is_forced:
                found, starts = bucket_blocks(found, starts, pricing.mesh, pricing.hardware)
            moved.update(starts)
            return found

        graph = change(before.graph, is_body=False)
        if self.is_forced:
            return Ordered.of(graph, pricing, moved)
        return self._choose(before, graph, moved) if moved else before

    def postpone(self, before: Ordered) -> Ordered:
        """Put work behind collectives."""

        def change(graph: Graph) -> Graph:
            found = postpone(graph, before.hiding, self.pricing.list_seconds(graph))
            nodes = tuple(map_bodies(node, change) for node in found.nodes)
            return Graph(graph.inputs, nodes, graph.outputs)

        return self._choose(before, change(before.graph), before.moved)

    def wait(self, before: Ordered) -> Graph:
        """Make starts and waits of what was moved, and of what is waited for early."""
        limit = (1 + SLACK) * before.hiding.seconds
        later = _list_later(before.graph)
        for ahead in AHEAD:
            until = {node: ends[ahead - 1] for node, ends in later.items() if len(ends) >= ahead}
            if not until:
                break
            after = _with_waits(before.graph, before.moved, until)
            if find_hiding(after, self.pricing).seconds <= limit:
                return after
        return _with_waits(before.graph, before.moved, {})

    def _choose(self, before: Ordered, graph: Graph, moved: Collection[Node]) -> Ordered:
        """Return a changed graph if it is predicted to take less time than the one before."""
        if _list_order(graph) == _list_order(before.graph):
            return before
        after = Ordered.of(graph, self.pricing, moved)
        return after if after.hiding.seconds < before.hiding.seconds else before


def _list_order(graph: Graph) -> list[Node]:
    return [node for node in all_nodes(graph) if not node.op.bodies]


def _with_waits(graph: Graph, moved: Collection[Node], until: Mapping[Node, Node]) -> Graph:
    made = place_waits(graph, moved, until)
    nodes = (map_bodies(node, lambda body: _with_waits(body, moved, until)) for node in made.nodes)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _list_later(graph: Graph) -> dict[Node, list[Node]]:
    """Return for what is scattered the nodes that begin the stretches between it and its use."""
    stretches, uses = find_stretches(graph), graph.uses()
    positions = {node: position for position, node in enumerate(graph.nodes)}
    found = {}
    for position, node in enumerate(graph.nodes):
        if _keeps_more(node):
            used = (positions[user] for value in node.outputs for user, _ in uses.get(value, ()))
            end = min(used, default=len(graph.nodes))
            starts = stretches.starts[stretches.of[position] + 1 :]
            found[node] = [graph.nodes[start] for start in starts if start < end]
    return found


def _keeps_more(node: Node) -> bool:
    """Whether a collective has more in memory while it is on its way than what it makes."""
    return isinstance(collective_of(node.op), ReduceScatter) and node.phase != Phase.update


__all__ = [
    "Ordered", "defer_results", "find_order", "keep_collectives", "place_collectives",
]  # fmt: skip
