"""Puts gathers together with the first of them: what is kept at rest is there all the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from mithril.cost.streams import Pricing
from mithril.ir import Graph, Node, Phase
from mithril.ops.collective import AllGather
from mithril.ops.control import After
from mithril.partition.bucket_filling import Filling, find_form, size_of
from mithril.partition.bucket_sizes import Member, cut_by_time
from mithril.partition.sources import is_cheap, walk_back


def join_early(graph: Graph, fill: Filling, pricing: Pricing) -> Graph:
    """Return a graph with gathers put together, each bucket issued with its first.

    Args:
        graph: a local one; bodies of loops stay as they are.
        fill: what may travel together.
        pricing: says what is computed after what is gathered.
    """
    sources = _Sources(graph)
    buckets = [bucket for bucket in _fill(graph, fill, sources, pricing) if len(bucket) > 1]
    if not buckets:
        return graph
    first = {bucket[0]: bucket for bucket in buckets}
    absorbed = {node for bucket in buckets for node in bucket}
    nodes: dict[Node, None] = {}
    for position, node in enumerate(graph.nodes):
        if node in first:
            for member in first[node]:
                nodes |= dict.fromkeys(sources.list_before(member, position))
            nodes[fill.join(first[node])] = None
        elif node not in absorbed:
            nodes[node] = None
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _fill(graph: Graph, fill: Filling, sources: _Sources, pricing: Pricing) -> Iterator[list[Node]]:
    """Yield buckets of what could be gathered where the first one of each is.

    In time that runs backwards a gather is like a sum: it may arrive once all that is computed
    after it is behind, and is gone, at last, when the program begins. So what decides on sums
    decides here, from the last gather to the first.
    """
    alike: dict[object, list[Member]] = {}
    left: Mapping[Node, float] = {}
    for position, node in enumerate(graph.nodes):
        op = node.op
        if not isinstance(op, AllGather) or node.phase == Phase.update or len(node.inputs) > 1:
            continue
        if not fill.may_join(node) or size_of(node) > fill.find_limit(op):
            continue
        key = op, node.phase, node.inputs[0].type.dtype, find_form(node)
        if fill.is_timed(op) and not left:
            left = _list_left(graph, pricing)
        earliest = sources.find_earliest(node)
        member = Member(node, size_of(node), -position, 1 - earliest, left.get(node, 0.0))
        alike.setdefault(key, []).append(member)
    for members in alike.values():
        op = members[0].node.op
        assert isinstance(op, AllGather), "nothing else is here"
        if fill.is_timed(op):
            cuts = cut_by_time(members[::-1], fill.find_link(op))
            yield from ([member.node for member in reversed(cut)] for cut in cuts)
        else:
            yield from _cut_in_order(members, fill.find_limit(op))


def _cut_in_order(members: Sequence[Member], limit: int) -> Iterator[list[Node]]:
    """Yield gathers in buckets of at most so many bytes, the first one as full as it can be."""
    current: list[Member] = []
    for member in members:
        is_full = sum(m.bytes for m in current) + member.bytes > limit
        if current and (is_full or current[0].position >= member.deadline):
            yield [m.node for m in current]
            current = []
        current.append(member)
    yield [m.node for m in current]


def _list_left(graph: Graph, pricing: Pricing) -> Mapping[Node, float]:
    """Return the seconds of computing that are left when a gather is first needed."""
    seconds, uses = pricing.list_seconds(graph), graph.uses()
    left = 0.0
    found: dict[Node, float] = {}
    after: dict[Node, float] = {}
    for node in reversed(graph.nodes):
        left += seconds.get(node, 0.0)
        after[node] = left
        if isinstance(node.op, AllGather):
            users = (after[user] for value in node.outputs for user, _ in uses.get(value, ()))
            found[node] = max(users, default=0.0)
    return found


class _Sources:
    """Where the operands of gathers come from."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._positions = {node: position for position, node in enumerate(graph.nodes)}

    def find_earliest(self, node: Node) -> int:
        """Return the first position at which a gather can be issued.

        A cast or a view of what is there, or a node that only says what it comes after, goes with
        it.
        """
        earliest = 0
        for maker in walk_back(node.inputs[0], self._producers):
            last = self._producers.get(maker.inputs[-1]) if isinstance(maker.op, After) else maker
            if last is not None and not is_cheap(maker):
                earliest = max(earliest, self._positions[last] + 1)
        return earliest

    def list_before(self, node: Node, position: int) -> list[Node]:
        """Return what has to be computed so that a gather can be issued at an earlier position."""
        walked = walk_back(node.inputs[0], self._producers)
        return list(takewhile(lambda maker: self._positions[maker] >= position, walked))[::-1]


__all__ = ["join_early"]
