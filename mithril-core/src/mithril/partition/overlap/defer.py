"""Schedules nodes late that only depend on a collective which nothing else waits for.

A loss that is summed over devices is such a case: the backward computation need not wait for the
sum, only whoever reads the loss.
"""

from __future__ import annotations

from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.rewrite import communicates


def defer_uncritical(graph: Graph, *, with_updates: bool = True) -> Graph:
    """Return a graph in which such nodes stand at the end; collectives keep their order.

    Args:
        graph: a local one.
        with_updates: whether updates are deferred, too, whose gradients stay in memory until then.
    """
    awaited: set[Value] = set()
    for node in reversed(graph.nodes):
        stays = communicates(node) or (node.phase == Phase.update and not with_updates)
        if stays or awaited.intersection(node.outputs):
            awaited.update(node.inputs)
    early: list[Node] = []
    late: list[Node] = []
    coming: set[Value] = set()
    for node in graph.nodes:
        is_late = not communicates(node) and bool(coming.intersection(node.inputs))
        (late if is_late else early).append(node)
        if is_late or communicates(node):
            coming.update(set(node.outputs) - awaited)
    return Graph(graph.inputs, (*early, *late), graph.outputs)
