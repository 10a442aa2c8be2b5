"""Remove what no output needs, and what says something without computing.

Values stay the same ones, so what is known about them holds.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from itertools import compress

from mithril.ir import Graph, Node, Value
from mithril.ir.rewrite import map_bodies


def eliminate_dead(graph: Graph) -> Graph:
    """Return the graph without nodes, and stacks of loops, that nobody uses; inputs stay."""
    needed = set(graph.outputs.values())
    kept = []
    for node in reversed(graph.nodes):
        if any(value in needed for value in node.outputs):
            node = map_bodies(_narrow(node, needed), eliminate_dead)
            needed.update(node.inputs)
            kept.append(node)
    return Graph(graph.inputs, tuple(reversed(kept)), graph.outputs)


def runnable(graph: Graph) -> Graph:
    """Return the graph as an engine runs it whole, ops without kernel as what they compute."""
    return Graph(graph.inputs, tuple(map(_plain, graph.nodes)), graph.outputs)


def _plain(node: Node) -> Node:
    if node.op.bodies:
        return map_bodies(node, runnable)
    if node.op.has_kernel:
        return node
    return replace(node, op=node.op.plain([value.type for value in node.outputs]))


def _narrow(node: Node, needed: Container[Value]) -> Node:
    """Return a node without results that nobody needs, as far as its op can leave them out."""
    op, kept = node.op.narrow([value in needed for value in node.outputs])
    if all(kept):
        return node
    return replace(node, op=op, outputs=tuple(compress(node.outputs, kept)))
