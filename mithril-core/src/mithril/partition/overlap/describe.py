"""Has the collectives of a program say how much of each is hidden, and behind what."""

from __future__ import annotations

from dataclasses import replace

from mithril.cost.hidden import Hiding
from mithril.ir import Graph, Node
from mithril.ir.rewrite import map_bodies

NAMED = 3
"""How many layers a collective names that it is hidden behind."""


def say_hidden(graph: Graph, hiding: Hiding, told: dict[Node, Node]) -> Graph:
    """Return a graph with what hides each collective in its cause.

    Args:
        graph: a local one.
        hiding: what of its communication is hidden.
        told: is filled with what stands for each collective.
    """
    nodes = []
    for node in graph.nodes:
        if node in hiding.taken:
            nodes.append(told.setdefault(node, _say(node, hiding)))
        else:
            nodes.append(map_bodies(node, lambda body: say_hidden(body, hiding, told)))
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _say(node: Node, hiding: Hiding) -> Node:
    if node.cause is None:
        return node
    layers = hiding.behind.get(node, {})
    longest = sorted(layers, key=lambda layer: -layers[layer])[:NAMED]
    cause = replace(node.cause, hidden=hiding.find_hidden(node), behind=tuple(longest))
    return replace(node, cause=cause)


__all__ = ["say_hidden"]
