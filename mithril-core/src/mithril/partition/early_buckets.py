"""Puts gathers together with the first of them: what is kept at rest is there all the time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from mithril.ir import Graph, Node, Phase
from mithril.ops.collective import AllGather
from mithril.ops.control import After
from mithril.partition.bucket_filling import Filling, find_form, size_of
from mithril.partition.sources import is_cheap, walk_back


@dataclass(slots=True)
class _Bucket:
    """Gathers that travel together.

    Args:
        start: the position of its first member.
        nodes: its members.
        bytes: of all of them.
    """

    start: int
    nodes: list[Node] = field(default_factory=list)
    bytes: int = 0


def join_early(graph: Graph, fill: Filling) -> Graph:
    """Return a graph with gathers put together, each bucket issued with its first.

    Args:
        graph: a local one; bodies of loops stay as they are.
        fill: what may travel together.
    """
    buckets = [b for b in _fill(graph, fill) if len(b.nodes) > 1]
    if not buckets:
        return graph
    first = {bucket.nodes[0]: bucket for bucket in buckets}
    absorbed = {node for bucket in buckets for node in bucket.nodes}
    finder = _Sources(graph)
    nodes: dict[Node, None] = {}
    for node in graph.nodes:
        if node in first:
            bucket = first[node]
            for member in bucket.nodes:
                nodes |= dict.fromkeys(finder.list_before(member, bucket.start) or ())
            nodes[fill.join(bucket.nodes)] = None
        elif node not in absorbed:
            nodes[node] = None
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _fill(graph: Graph, fill: Filling) -> list[_Bucket]:
    """Fill buckets in program order with what could be gathered where their first one is."""
    sources = _Sources(graph)
    filled: list[_Bucket] = []
    current: dict[object, _Bucket] = {}
    for position, node in enumerate(graph.nodes):
        op = node.op
        if not isinstance(op, AllGather) or node.phase == Phase.update or len(node.inputs) > 1:
            continue
        if not fill.may_join(node):
            continue
        size, limit = size_of(node), fill.find_limit(op)
        if size > limit:
            continue
        key = (op, node.phase, node.inputs[0].type.dtype, find_form(node))
        bucket = current.get(key)
        if (
            bucket is None
            or bucket.bytes + size > limit
            or sources.list_before(node, bucket.start) is None
        ):
            bucket = current[key] = _Bucket(position)
            filled.append(bucket)
        bucket.nodes.append(node)
        bucket.bytes += size
    return filled


class _Sources:
    """Where the operands of gathers come from."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._positions = {node: position for position, node in enumerate(graph.nodes)}

    def list_before(self, node: Node, position: int) -> list[Node] | None:
        """Return what has to be computed so that a gather can be issued at an earlier position.

        That may be a cast or a view of what is there; None where it is more.
        """
        walked = walk_back(node.inputs[0], self._producers)
        found = list(takewhile(lambda maker: self._positions[maker] >= position, walked))
        if all(is_cheap(maker) or self._is_gate(maker, position) for maker in found):
            return found[::-1]
        return None

    def _is_gate(self, node: Node, position: int) -> bool:
        """Whether a node only says that its operand comes after something, which is there."""
        maker = self._producers.get(node.inputs[-1])
        is_there = maker is None or self._positions[maker] < position
        return isinstance(node.op, After) and is_there


__all__ = ["join_early"]
