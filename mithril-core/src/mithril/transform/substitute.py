"""Put ops in the place of others that compute the same and can be split otherwise."""

from __future__ import annotations

from collections.abc import Collection

from mithril.ir import Builder, Graph, Node, Tensors
from mithril.ir.rewrite import rewrite
from mithril.ops.alternatives import find_alternative


def substitute(graph: Graph, nodes: Collection[Node], way: int) -> Graph:
    """Return the graph in which some nodes compute the same in another way, if they have it.

    Args:
        graph: any graph.
        nodes: of it.
        way: the number of the way, as of `find_alternative`.
    """

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if node not in nodes:
            return None
        other = find_alternative(node.op, [value.type for value in node.inputs], way)
        return None if other is None else list(builder.apply(other, *operands))

    return rewrite(graph, visit)


__all__ = ["substitute"]
