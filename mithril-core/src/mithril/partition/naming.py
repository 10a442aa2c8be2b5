"""What things in a plan are called, for stamps and causes."""

from __future__ import annotations

from mithril.ir import Graph, Node, Value


def first_uses(graph: Graph) -> dict[Value, str]:
    """Return who uses each value first: a node or an output."""
    uses: dict[Value, str] = {}
    for node in graph.nodes:
        for value in node.inputs:
            uses.setdefault(value, label(node))
    for name, value in graph.outputs.items():
        uses.setdefault(value, f"output '{name}'")
    return uses


def label(node: Node) -> str:
    """Return what a node is called: its layer path and op."""
    return f"{node.scope}.{node.op.name}" if node.scope else node.op.name
