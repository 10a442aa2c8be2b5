"""Nodes put into a local graph, and what they may wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.start import Start
from mithril.ops.host import find_on_host

REACH = 64
"""So many nodes behind the first use are looked at for a value that exists before it."""


def insert(
    graph: Graph,
    behind: Mapping[int, Sequence[Node]],
    ahead: Mapping[int, Sequence[Node]],
    renamed: Sequence[tuple[int, Mapping[Value, Value]]],
) -> Graph:
    """Return a graph with more nodes behind and ahead of some positions.

    Args:
        graph: a local one.
        behind: nodes by the position that they follow; -1 for the start.
        ahead: nodes by the position that follows them, which read what is not renamed there yet.
        renamed: from which position on what stands for which values.
    """
    nodes = list(behind.get(-1, ()))
    known: dict[Value, Value] = {}
    waiting = sorted(renamed, key=lambda item: -item[0])
    for position, node in enumerate(graph.nodes):
        nodes += (use(new, known) for new in ahead.get(position, ()))
        while waiting and waiting[-1][0] <= position:
            known |= waiting.pop()[1]
        nodes.append(use(node, known))
        nodes += behind.get(position, ())
    return _without_unused(Graph(graph.inputs, tuple(nodes), graph.outputs))


def use(node: Node, known: Mapping[Value, Value]) -> Node:
    """Return a node that uses what stands for its operands."""
    if not any(value in known for value in node.inputs):
        return node
    return replace(node, inputs=tuple(known.get(value, value) for value in node.inputs))


def _without_unused(graph: Graph) -> Graph:
    """Return the graph without views that nobody needs."""
    needed = set(graph.outputs.values())
    kept = []
    for node in reversed(graph.nodes):
        if not node.op.is_view or not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return Graph(graph.inputs, tuple(reversed(kept)), graph.outputs)


def with_outputs(graph: Graph, outputs: Mapping[str, Value]) -> Graph:
    """Return a graph with other outputs."""
    return Graph(graph.inputs, graph.nodes, outputs)


class DependencyFinder:
    """Finds what exists just before a value is needed.

    It is what the node that needs the value, or one that needs what this makes, needs besides: so
    it runs for the same micro-batch, and waits for nothing that these do not wait for.
    """

    def __init__(self, graph: Graph, moved: Collection[Value] = ()) -> None:
        self._graph = graph
        self._uses = graph.uses()
        self._made = {v: at for at, node in enumerate(graph.nodes) for v in node.outputs}
        self._at = {node: position for position, node in enumerate(graph.nodes)}
        pending = {v for node in graph.nodes if isinstance(node.op, Start) for v in node.outputs}
        self._unfit = {*find_on_host(graph), *pending, *moved}

    def find(self, user: int, place: int) -> Value | None:
        """Return the latest such value, or None.

        Args:
            user: position of the node that needs what is brought back.
            place: position that it is brought back before.
        """
        phase = self._graph.nodes[user].phase
        for node in self._follow(self._graph.nodes[user]):
            fits = [value for value in node.inputs if self._fits(value, place, phase)]
            if fits:
                return max(fits, key=lambda value: self._made.get(value, -1))
        return None

    def _fits(self, value: Value, place: int, phase: Phase) -> bool:
        if value in self._unfit or not value.type.size:
            return False
        if value in self._made:
            at = self._made[value]
            return at < place and self._graph.nodes[at].phase == phase != Phase.forward
        users = self._uses[value]  # of an input: a gradient that is given
        return phase == Phase.backward and all(user.phase == phase for user, _ in users)

    def _follow(self, node: Node) -> Iterator[Node]:
        """Yield a node, those that need what it makes, and so on."""
        waiting, seen = [node], {node}
        for _ in range(REACH):
            if not waiting:
                return
            found = waiting.pop(0)
            yield found
            users = (user for value in found.outputs for user, _ in self._uses.get(value, ()))
            new = [user for user in dict.fromkeys(users) if user not in seen]
            seen.update(new)
            waiting += sorted(new, key=self._at.__getitem__)


__all__ = ["DependencyFinder", "insert", "use", "with_outputs"]
