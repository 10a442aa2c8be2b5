"""Ops whose kernel somebody else brings: the plan runs these in the place of the core's."""

from __future__ import annotations

from dataclasses import replace

from mithril.ir import Graph, Node
from mithril.ir.rewrite import all_nodes, map_bodies
from mithril.ops.own_kernel import choose_op, list_kernels


def use_own_kernels(graph: Graph, backend: str) -> Graph:
    """Return a local graph in which ops run the kernels that `define_kernel` gave them.

    Args:
        graph: a local graph, after all passes that look for ops of the core.
        backend: where it will run.
    """
    known = list_kernels(backend)
    if not known or not any(node.op.name in known for node in all_nodes(graph)):
        return graph

    def choose(node: Node) -> Node:
        changed = map_bodies(node, change)
        return replace(changed, op=choose_op(changed.op, backend))

    def change(graph: Graph) -> Graph:
        return Graph(graph.inputs, tuple(map(choose, graph.nodes)), graph.outputs)

    return change(graph)
