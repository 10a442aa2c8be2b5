"""Makes starts and waits of collectives: where each is waited for becomes part of the program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from mithril.ir import Graph, Node, Start, Value, Wait
from mithril.ir.rewrite import map_bodies
from mithril.ops.collective import collective_of


def wait_at_once(graph: Graph) -> Graph:
    """Return a graph in which every collective is waited for where it starts, in loops too."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if collective_of(node.op) is None:
            nodes.append(map_bodies(node, wait_at_once))
        else:
            nodes += split(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def place_waits(graph: Graph, started: Collection[Node], until: Mapping[Node, Node]) -> Graph:
    """Return a graph in which some collectives are starts and waits.

    Args:
        graph: a local one, in its order.
        started: collectives that are waited for right before their first use.
        until: collectives with the node before which they are waited for, if not used earlier.
    """
    if not any(node in started or node in until for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    waits: dict[Value, Node] = {}
    by_node: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        due = [*by_node.pop(node, ()), *(waits[v] for v in node.inputs if v in waits)]
        for wait in dict.fromkeys(due):
            if wait.outputs[0] in waits:
                where = {"scope": node.scope, "source": node.source, "phase": node.phase}
                nodes.append(replace(wait, **where))
                for value in wait.outputs:
                    del waits[value]
        if node in started or node in until:
            start, wait = split(node)
            nodes.append(start)
            waits |= dict.fromkeys(wait.outputs, wait)
            if node in until:
                by_node.setdefault(until[node], []).append(wait)
        else:
            nodes.append(node)
    nodes += dict.fromkeys(waits.values())
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def split(node: Node) -> tuple[Node, Node]:
    """Return the start and the wait of a collective."""
    pending = tuple(Value(value.type, value.name) for value in node.outputs)
    start = replace(node, op=Start(node.op), outputs=pending)
    return start, replace(node, op=Wait(), inputs=pending, cause=None)


__all__ = ["place_waits", "split", "wait_at_once"]
