"""Has all that a block needs travel in one buffer, and all that it scatters, at any price."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from mithril.cost import Hardware
from mithril.ir import Graph, Node, Phase, Value
from mithril.mesh import Mesh
from mithril.ops.collective import ReduceScatter, collective_of
from mithril.partition.bucket_filling import join_collectives
from mithril.partition.overlap.stretches import find_stretches
from mithril.partition.sources import is_cheap


def bucket_blocks(
    graph: Graph, moved: Collection[Node], mesh: Mesh, hardware: Hardware
) -> tuple[Graph, frozenset[Node]]:
    """Return a graph with one collective in the place of several of a block.

    Args:
        graph: a local one, with what is started early where it starts.
        moved: what is started early.
        mesh: the devices.
        hardware: the profile that prices what travels.

    Returns:
        The graph, and what of it is started early.
    """
    groups = [*_list_started(graph, moved), *_list_scattered(graph)]
    several = [group for group in groups if len(group) > 1]
    last = {group[-1]: join_collectives(group, mesh, hardware) for group in several}
    absorbed = {node for group in several for node in group}
    nodes = (last.get(node, node) for node in graph.nodes if node in last or node not in absorbed)
    started = {last[group[-1]] for group in several if group[0] in moved}
    return Graph(graph.inputs, tuple(nodes), graph.outputs), frozenset(
        (set(moved) - absorbed) | started
    )


def _list_started(graph: Graph, moved: Collection[Node]) -> Iterator[Sequence[Node]]:
    """Yield what is started at one place, and is alike, if nothing there needs any of it."""
    current: dict[object, list[Node]] = {}
    made = set[Value]()
    for node in graph.nodes:
        is_work = collective_of(node.op) is None and not is_cheap(node)
        if is_work or made.intersection(node.inputs):
            yield from current.values()
            current, made = {}, set()
        if node in moved:
            current.setdefault(_describe(node), []).append(node)
            made.update(node.outputs)
    yield from current.values()


def _list_scattered(graph: Graph) -> Iterator[Sequence[Node]]:
    """Yield what one block scatters, and is alike, if nothing needs any of it before the last."""
    stretches, uses = find_stretches(graph), graph.uses()
    positions = {node: position for position, node in enumerate(graph.nodes)}
    found: dict[object, list[Node]] = {}
    for node, number in zip(graph.nodes, stretches.of, strict=True):
        if isinstance(node.op, ReduceScatter) and node.phase != Phase.update:
            found.setdefault((number, _describe(node)), []).append(node)
    for group in found.values():
        used = (
            positions[user] for node in group for v in node.outputs for user, _ in uses.get(v, ())
        )
        if min(used, default=len(graph.nodes)) > positions[group[-1]]:
            yield group


def _describe(node: Node) -> object:
    """Return what collectives must have in common to be one."""
    return node.op, node.phase, node.inputs[0].type.dtype


__all__ = ["bucket_blocks"]
