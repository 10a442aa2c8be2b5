"""Compute forward values again in the backward instead of keeping them.

The values that are dropped are told by identity; everything else stays what it is. A late node (see
`residuals`) that reads a dropped value reads a clone of it: the nodes that made it stand again
directly before the first late node that needs them, and what they need that is not dropped is kept.
Clones are of the backward phase, and bear the layer and the line of what they repeat.

No compiler may see that a clone computes what the forward has computed: some operand of it comes
`after` a value of the backward that exists just before. Draws of random numbers depend on seed and
place alone, so a clone draws the same; collectives run again in the same order on every device.

A loop of the forward that stacks up a dropped value of its body does so no longer. The backward
loop, which took a slice of that stack in each iteration, computes it from slices of what is still
stacked. Its body is another computation than the forward's, so nothing has to be kept apart there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from mithril.ir import Graph, Node, Value
from mithril.ir.rewrite import all_nodes, map_bodies
from mithril.mesh import MICRO
from mithril.partition.pipeline.microbatch_index import varying
from mithril.partition.recompute.clone import Gates
from mithril.partition.recompute.levels import TopLevel
from mithril.partition.recompute.residuals import split_phases
from mithril.plan import Program
from mithril.transform.simplify import eliminate_dead


def recompute(program: Program, dropped: Collection[Value]) -> Program:
    """Return a local program whose backward computes some values of the forward again.

    Args:
        program: forward and backward.
        dropped: values that forward nodes make, in the graph or in bodies of its loops. What a
            dropped value is computed from is kept, unless it is dropped as well.

    Returns:
        The program; the same one if no late node needs any of the values.
    """
    in_time = list_in_time(program)
    may_wait_for = _wait_for_any if in_time is None else in_time.__contains__
    graph = recompute_graph(program.graph, dropped, may_wait_for)
    return program if graph is program.graph else replace(program, graph=graph)


def list_in_time(program: Program) -> frozenset[Value] | None:
    """Return the values that differ from micro-batch to micro-batch; None without micro-batches.

    The others are computed once for all micro-batches: only what differs may be dropped, and what
    a clone comes after has to be such a value, too.
    """
    if MICRO not in program.mesh.sizes:
        return None
    return frozenset(value for value, axes in varying(program).items() if MICRO in axes)


def _wait_for_any(value: Value) -> bool:
    return True


def recompute_graph(
    graph: Graph,
    dropped: Collection[Value],
    may_wait_for: Callable[[Value], bool] = _wait_for_any,
) -> Graph:
    """Return a local graph whose backward computes some values of its forward again.

    Args:
        graph: of a program, or the body of a loop that takes gradients.
        dropped: as of `recompute`.
        may_wait_for: whether what is computed again may come after a value of the graph.
    """
    found = _rewrite(graph, frozenset(dropped), may_wait_for)
    return graph if found is graph else eliminate_dead(found)


def _rewrite(
    graph: Graph,
    dropped: frozenset[Value],
    may_wait_for: Callable[[Value], bool] = _wait_for_any,
) -> Graph:
    """Return the graph with clones, and what nobody needs any more; the same if it has none."""
    if not dropped:
        return graph
    graph = _rewrite_bodies(graph, dropped)
    early, late = split_phases(graph)
    if not late or dropped.isdisjoint(_list_made(early)):
        return graph
    level = TopLevel(early, dropped, Gates(graph, early, may_wait_for))
    is_late = frozenset(late)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += level.renew(node) if node in is_late else [node]
    return Graph(graph.inputs, tuple(map(level.patch, nodes)), graph.outputs)


def _rewrite_bodies(graph: Graph, dropped: frozenset[Value]) -> Graph:
    """Return the graph whose loops recompute in gradients that their bodies take themselves."""
    nodes = [_rewrite_inside(node, dropped) for node in graph.nodes]
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _rewrite_inside(node: Node, dropped: frozenset[Value]) -> Node:
    found = map_bodies(node, lambda body: _rewrite(body, dropped))
    pairs = zip(found.op.bodies, node.op.bodies, strict=True)
    return node if all(new is old for new, old in pairs) else found


def _list_made(nodes: Sequence[Node]) -> set[Value]:
    """Return what nodes, and those of their bodies, make."""
    return {value for node in nodes for inner in all_nodes(node) for value in inner.outputs}


__all__ = ["recompute", "recompute_graph"]
