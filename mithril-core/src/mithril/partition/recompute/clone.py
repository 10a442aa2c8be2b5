"""Clones of forward nodes, and what keeps them apart from what they repeat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from mithril.ir import Graph, Node, Op, Phase, Value
from mithril.ir.rewrite import copy_graph
from mithril.ops.control import After
from mithril.partition.recompute.residuals import find_fixed

AGAIN = " again"
"""How names of values end that are computed again."""

Fetch = Callable[[Value], Value]
"""Returns a forward value that is kept, as the backward has it."""


class Cloner:
    """Repeats forward nodes.

    Args:
        nodes: of the forward, in order.
        is_again: whether a value is computed again where the backward needs it.
        fetch: returns what is kept.
        gates: what keeps clones apart from their originals, where that is needed.

    `cloned` are the forward nodes that run again.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        is_again: Callable[[Value], bool],
        fetch: Fetch,
        gates: Gates | None = None,
    ) -> None:
        self._order = {node: position for position, node in enumerate(nodes)}
        self.makers = {value: node for node in nodes for value in node.outputs}
        self._is_again = is_again
        self._fetch = fetch
        self._gates = gates
        self._made: dict[Value, Value] = {}
        self.cloned: list[Node] = []

    def clones(self, value: Value) -> bool:
        """Return whether a value is computed again."""
        return value in self.makers and self._is_again(value)

    def of(self, value: Value) -> Value:
        """Return a forward value as the backward has it: its clone, or what is kept."""
        return self._made[value] if self.clones(value) else self._fetch(value)

    def has(self, node: Node) -> bool:
        """Return whether the clone of a node of the forward is there already."""
        return all(value in self._made for value in node.outputs)

    def adopt(self, node: Node, outputs: Sequence[Value]) -> None:
        """Take what a node of the backward makes as the clone of what one of the forward makes."""
        self._made.update(zip(node.outputs, outputs, strict=True))

    def make(self, wanted: Iterable[Value]) -> list[Node]:
        """Return the nodes that make the clones of some values, without those there are already."""
        made: list[Node] = []
        nodes = self._find(wanted)
        if nodes and self._gates is not None:
            self._gates.open_behind(self._order[nodes[-1]])
        for node in nodes:
            inputs = [self.of(value) for value in node.inputs]
            if self._gates is not None:
                made += self._gates.close(inputs, is_whole=type(node.op).expand is Op.expand)
            clone = _copy(node, inputs)
            self.cloned.append(node)
            made.append(clone)
            if self._gates is not None:
                self._gates.add(clone)
            self._made.update(zip(node.outputs, clone.outputs, strict=True))
        return made

    def _find(self, wanted: Iterable[Value]) -> list[Node]:
        """Return the forward nodes that have to run again, in order."""
        waiting, found = list(wanted), dict[Node, None]()
        while waiting:
            value = waiting.pop()
            if value in self._made or not self.clones(value):
                continue
            node = self.makers[value]
            if node not in found:
                found[node] = None
                waiting += node.inputs
        return sorted(found, key=self._order.__getitem__)


def _copy(node: Node, inputs: Sequence[Value]) -> Node:
    """Return a node of the backward that computes what a node of the forward computes."""
    outputs = tuple(Value(v.type, f"{v.name}{AGAIN}" if v.name else "") for v in node.outputs)
    cause = node.cause and replace(node.cause, is_again=True)
    op = node.op.with_bodies([copy_graph(body) for body in node.op.bodies])
    return replace(
        node, op=op, inputs=tuple(inputs), outputs=outputs, phase=Phase.backward, cause=cause
    )


class Gates:
    """Keeps clones behind values of the backward, so that no compiler merges them with originals.

    A value reaches as far as the last forward node that it needs. A clone comes after a value of
    the backward that reaches further than what is cloned, or else after the end of the forward.
    With micro-batches, forward and backward are programs of their own: what comes from the next
    stage, or from the loss, is at the start of the backward.

    Args:
        graph: all of it.
        early: its forward nodes.
        dropped: what is not kept for the backward.
        in_time: the values that differ from micro-batch to micro-batch; None without these.
    """

    def __init__(
        self,
        graph: Graph,
        early: Sequence[Node],
        dropped: Collection[Value],
        in_time: Collection[Value] | None,
    ) -> None:
        self._in_time = in_time
        self._fixed = find_fixed(graph)
        self._originals = {value for node in early for value in node.outputs}
        self._reach: dict[Value, int] = {}
        for position, node in enumerate(early):
            if not self._fixed.issuperset(node.inputs):
                self._reach.update(dict.fromkeys(node.outputs, position))
        self._end = self._find_end(graph, dropped) if in_time is None else None
        if in_time is not None:
            read = {value for node in early for value in node.inputs}
            seeds = (v for v in graph.inputs if v not in read and v in in_time)
            self._reach.update(dict.fromkeys(seeds, len(early)))
        self._placed: list[Value] = []
        self._waiting: Sequence[Value] = ()
        self._dependency: Value | None = None
        self._behind: set[Value] = set()

    def _find_end(self, graph: Graph, dropped: Collection[Value]) -> Value | None:
        """Return what the forward makes last and is needed later on: an output, if there is one."""
        before = list(takewhile(lambda node: self._originals.issuperset(node.outputs), graph.nodes))
        made = {v for node in before for v in node.outputs if v in self._reach}
        later = {value for node in graph.nodes[len(before) :] for value in node.inputs}
        leaving = made.intersection(graph.outputs.values())
        found = leaving or made.intersection(later).difference(dropped)
        return max(found, key=self._reach.__getitem__, default=None)

    def _may_wait_for(self, value: Value) -> bool:
        return self._in_time is None or value in self._in_time

    def wait_with(self, node: Node) -> None:
        """Say which node of the backward needs the next clones."""
        self._waiting = node.inputs

    def open_behind(self, position: int) -> None:
        """Choose what the next clones come after.

        Args:
            position: of the last forward node that is cloned; what they come after reaches further.
        """
        late = (v for v in self._waiting if v not in self._originals)
        found = (v for v in (*late, *reversed(self._placed)) if self._far(v) > position)
        self._dependency = next(filter(self._may_wait_for, found), self._end)

    def pass_by(self, node: Node) -> None:
        """Take note of a node of the backward that has been placed."""
        reach = max(map(self._far, node.inputs), default=-1)
        self._reach.update(dict.fromkeys(node.outputs, reach))
        self._placed += node.outputs[:1]

    def close(self, inputs: list[Value], *, is_whole: bool) -> list[Node]:
        """Put an operand of a clone behind the backward, unless one is there already.

        That is the smallest one, if nothing can be computed without it. Of an op that a compiler
        takes apart it is the largest one: what a norm makes of its operand alone, which is as large
        as that, would be made for all layers at the start of the backward.

        Args:
            inputs: operands; the one that is put behind is replaced.
            is_whole: whether the clone is one op to a compiler.

        Returns:
            The node that does it, if it is done.
        """
        others = [v for v in inputs if v not in self._fixed]
        if self._dependency is None or not others or not self._behind.isdisjoint(others):
            return []
        choose = min if is_whole else max
        x = choose(others, key=lambda value: value.type.nbytes)
        held = Value(x.type)
        inputs[:] = [held if value is x else value for value in inputs]
        self._behind.add(held)
        self._reach[held] = self._far(self._dependency)
        return [Node(After(), (x, self._dependency), (held,), phase=Phase.backward)]

    def add(self, clone: Node) -> None:
        """Take note of a clone that has been placed."""
        if not self._fixed.issuperset(clone.inputs):
            self._behind.update(clone.outputs)
            self._reach.update(dict.fromkeys(clone.outputs, max(map(self._far, clone.inputs))))
        else:
            self._fixed.update(clone.outputs)

    def _far(self, value: Value) -> int:
        return self._reach.get(value, -1)


__all__ = ["AGAIN", "Cloner", "Gates"]
