"""Scalars that a program computes more than once, computed once.

What is the same for all parameters, such as a learning rate, is written anew for each of them where
every parameter is updated by itself. An engine that runs a kernel an op would feel each.
"""

from __future__ import annotations

from dataclasses import replace

from mithril.ir import Graph, Node, Value


def join_equal_scalars(graph: Graph) -> Graph:
    """Return the graph without nodes of scalars that are there already; bodies stay as they are.

    Args:
        graph: a local one; outputs stay the values that they are.
    """
    kept = set(graph.outputs.values())
    same: dict[Value, Value] = {}
    known: dict[object, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if not same.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple(same.get(value, value) for value in node.inputs))
        result = node.outputs[0]
        is_apart = node.op.is_collective or node.op.bodies or len(node.outputs) > 1
        if not result.type.rank and not is_apart:
            first = known.setdefault((str(node.op), node.inputs), result)  # 0.0 is not -0.0
            if first is not result and result not in kept:
                same[result] = first
                continue
        nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


__all__ = ["join_equal_scalars"]
