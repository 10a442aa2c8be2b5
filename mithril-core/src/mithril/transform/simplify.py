"""Remove what no output needs."""

from __future__ import annotations

from mithril.ir import Graph


def eliminate_dead(graph: Graph) -> Graph:
    """Return the graph without nodes whose results nobody uses; inputs stay."""
    needed = set(graph.outputs.values())
    kept = []
    for node in reversed(graph.nodes):
        if any(value in needed for value in node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return Graph(graph.inputs, tuple(reversed(kept)), graph.outputs)
