"""Start and Wait: a collective as two ops, so that a program can put work in between.

The results of a `Start` are pending: they have the types of the collective's results, but nobody
may look at them before a `Wait` has taken all of them. It gives them back as ordinary values. To
every start belongs exactly one wait, in the same graph. A start issues its collective where it
stands, so that is its place in the order of a group.

An engine need not know these ops: `join_starts` makes plain collectives of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.errors import GraphError
from mithril.ir.graph import Graph, Node, Value
from mithril.ir.op import Cost, Op, Types, register
from mithril.ir.rewrite import all_nodes, map_bodies


@register
@dataclass(frozen=True)
class Start(Op):
    """Begins a collective, whose results are pending until a `Wait` takes them.

    Args:
        collective: what is begun.
    """

    name: ClassVar[str] = "start"
    is_collective: ClassVar[bool] = True
    collective: Op

    def infer(self, inputs: Types) -> Types:
        """Return the types of the collective's results."""
        return self.collective.infer(inputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        """Return the work of the collective."""
        return self.collective.cost(inputs, outputs)


@register
@dataclass(frozen=True)
class Wait(Op):
    """Gives the results of a `Start`, its operands, once they are there."""

    name: ClassVar[str] = "wait"

    def infer(self, inputs: Types) -> Types:
        """Return the types of the operands."""
        return list(inputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        """Return no work: the start has it."""
        return Cost(0, 0)

    def contracts(self, inputs: Types, outputs: Types) -> bool:
        """Return False: several operands are passed on, each by itself."""
        return False


def find_begun(op: Op) -> Op:
    """Return the collective that a start begins; any other op as it is."""
    return op.collective if isinstance(op, Start) else op


def verify_starts(graph: Graph) -> None:
    """Raise unless every start has one wait, and nothing else uses what is pending.

    Raises:
        GraphError: it is not so. Always a fault of Mithril.
    """
    started: dict[Value, Node] = {}
    waits: dict[Node, int] = {}
    for node in graph.nodes:
        if isinstance(node.op, Wait):
            waits[_start_of(node, started)] += 1
        else:
            _refuse_use(node, started)
        if isinstance(node.op, Start):
            started |= dict.fromkeys(node.outputs, node)
            waits[node] = 0
            if not node.op.collective.is_collective:
                raise GraphError(
                    f"start at {node.where()} begins no collective, but {node.op.collective}"
                )
    for name, value in graph.outputs.items():
        if value in started:
            raise GraphError(f"output '{name}' of the graph is pending; wait for it before")
    for node, count in waits.items():
        if count != 1:
            raise GraphError(f"{node.op} at {node.where()} has {count} waits; it needs one")


def _start_of(wait: Node, started: Mapping[Value, Node]) -> Node:
    found = started.get(wait.inputs[0]) if wait.inputs else None
    if found is None or found.outputs != wait.inputs:
        raise GraphError(
            f"wait at {wait.where()} takes {list(wait.inputs)}, which are not the results of one "
            f"start; give it all of them in their order"
        )
    return found


def _refuse_use(node: Node, started: Mapping[Value, Node]) -> None:
    for value in node.inputs:
        if value in started:
            raise GraphError(
                f"op '{node.op.name}' at {node.where()} uses {value!r}, which is pending; wait for "
                f"it before"
            )


def join_starts(graph: Graph) -> Graph:
    """Return the graph with the collectives themselves in place of their starts, and no waits.

    Who runs this has the collectives at once, or waits for each where its results are first used.
    """
    if not any(isinstance(node.op, Start) for node in all_nodes(graph)):
        return graph
    known: dict[Value, Value] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(known.get(value, value) for value in node.inputs)
        if isinstance(node.op, Wait):
            known |= zip(node.outputs, inputs, strict=True)
            continue
        op = find_begun(node.op)
        nodes.append(map_bodies(replace(node, op=op, inputs=inputs), join_starts))
    outputs = {name: known.get(value, value) for name, value in graph.outputs.items()}
    return Graph(graph.inputs, tuple(nodes), outputs)
