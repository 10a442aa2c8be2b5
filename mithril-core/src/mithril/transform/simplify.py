"""Remove what no output needs, and what says something without computing."""

from __future__ import annotations

from dataclasses import replace

from mithril.ir import Graph, Node, Repeat, Value


def eliminate_dead(graph: Graph) -> Graph:
    """Return the graph without nodes, and stacks of loops, that nobody uses; inputs stay."""
    needed = set(graph.outputs.values())
    kept = []
    for node in reversed(graph.nodes):
        if any(value in needed for value in node.outputs):
            node = _without_dead_stacks(node, needed)
            needed.update(node.inputs)
            kept.append(node)
    return Graph(graph.inputs, tuple(reversed(kept)), graph.outputs)


def runnable(graph: Graph) -> Graph:
    """Return the graph for an engine that runs it whole: of ops without kernel, what they compute.

    Values stay the same ones, so what is known about them holds.
    """
    nodes = []
    for node in graph.nodes:
        if isinstance(node.op, Repeat):
            node = replace(node, op=replace(node.op, body=runnable(node.op.body)))
        elif not node.op.has_kernel:
            node = replace(node, op=node.op.plain([value.type for value in node.outputs]))
        nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _without_dead_stacks(node: Node, needed: set[Value]) -> Node:
    """Return a loop that makes only the stacks that are used; its carries stay."""
    op = node.op
    if not isinstance(op, Repeat):
        return node
    outputs = list(zip(op.body.outputs.items(), node.outputs, strict=True))
    kept = outputs[: op.carried] + [o for o in outputs[op.carried :] if o[1] in needed]
    body = Graph(op.body.inputs, op.body.nodes, dict(item for item, _ in kept))
    smaller = replace(op, body=eliminate_dead(body))
    return replace(node, op=smaller, outputs=tuple(value for _, value in kept))
