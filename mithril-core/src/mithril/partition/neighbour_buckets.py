"""Puts exchanges together that are neighbours, where the program is predicted to take less time.

Those of one kind, with one group and dtype, are neighbours if no collective waits for the first of
them before the last one is made: the halos of several tensors, or what brings queries, keys and
values to other devices. Together they save start-ups, but what needs the first of them waits for
the last. So the time model decides, for all neighbours that are alike at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mithril.cost.streams import Pricing, simulate_program
from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.op import Types
from mithril.ops.collective import AllGather, AllToAll, Permute, collective_of
from mithril.partition.bucket_filling import Filling, find_form, size_of
from mithril.partition.late_buckets import find_waiting
from mithril.partition.sources import is_form, walk_back

MOVES = (AllGather, AllToAll, Permute)
"""What brings a value to other devices as it is; what reduces is put together as `late_buckets`."""

Group = list[Node]


def join_neighbours(graph: Graph, fill: Filling, pricing: Pricing) -> Graph:
    """Return a graph with neighbouring exchanges put together, each bucket issued with its last.

    What others waited for then may be neighbours, too, so it is done until nothing changes.

    Args:
        graph: a local one; bodies of loops stay as they are.
        fill: what may travel together.
        pricing: says how long the graph takes.
    """
    before = None
    while before is not graph:
        before, graph = graph, _join_alike(graph, fill, pricing)
    return graph


def _join_alike(graph: Graph, fill: Filling, pricing: Pricing) -> Graph:
    alike: dict[object, list[Group]] = {}
    for group in _find_groups(graph, fill):
        if len(group) > 1:
            # Of one key: so each group stands behind the one before.
            found = _find_key(group[0]), tuple(map(_list_types, group))
            alike.setdefault(found, []).append(group)
    if not alike:
        return graph
    seconds = _simulate(graph, pricing)
    for groups in alike.values():
        changed = _join(graph, groups, fill)
        taken = _simulate(changed, pricing)
        if taken < seconds:
            graph, seconds = changed, taken
    return graph


def _simulate(graph: Graph, pricing: Pricing) -> float:
    return simulate_program(pricing.price(graph), tells_events=False).seconds


def _list_types(node: Node) -> Types:
    return tuple(value.type for value in node.inputs)


def _find_key(node: Node) -> tuple[object, ...]:
    """Return what members of a group have in common."""
    is_again = node.cause is not None and node.cause.is_again
    return node.op, node.inputs[0].type.dtype, node.phase, find_form(node), is_again


@dataclass(slots=True)
class _Open:
    """A group that may get more members.

    Args:
        deadline: the position of the first collective that waits for one of them.
    """

    deadline: int
    nodes: Group = field(default_factory=list)
    bytes: int = 0


def _find_groups(graph: Graph, fill: Filling) -> list[Group]:
    """Return neighbours that fit into one bucket, those that are alone, too."""
    found: list[Group] = []
    waiting, makers = find_waiting(graph), graph.producers()
    current: dict[object, _Open] = {}
    for position, node in enumerate(graph.nodes):
        op = collective_of(node.op)
        if op is None or not _may_join(node, fill, makers):
            continue
        size, (_, deadline) = size_of(node), waiting[node]
        key = _find_key(node)
        group = current.get(key)
        is_full = group is not None and group.bytes + size > fill.find_limit(op)
        if group is None or is_full or position >= group.deadline:
            group = current[key] = _Open(deadline)
            found.append(group.nodes)
        group.nodes.append(node)
        group.bytes += size
        group.deadline = min(group.deadline, deadline)
    return found


def _may_join(node: Node, fill: Filling, makers: Mapping[Value, Node]) -> bool:
    """Whether a node brings what was computed to other devices; what rests is there anyway."""
    if not isinstance(node.op, MOVES) or node.phase == Phase.update or not fill.may_join(node):
        return False
    if not isinstance(node.op, AllGather):
        return True
    ways = (list(walk_back(value, makers)) for value in node.inputs)
    return all(any(not is_form(maker) for maker in way) for way in ways)


def _join(graph: Graph, groups: Sequence[Group], fill: Filling) -> Graph:
    """Return a graph with one collective in the place of the last of each group.

    What needs the others, and stood before it, follows.

    Args:
        graph: a local one.
        groups: of one key, so that each stands behind the one before.
        fill: puts them together.
    """
    joined = {node: group for group in groups for node in group}
    late = set[Value]()
    nodes: list[Node] = []
    waiting: list[Node] = []
    for node in graph.nodes:
        group = joined.get(node)
        if group is not None and node is group[-1]:
            nodes += [fill.join(group), *waiting]
            late, waiting = set(), []
        elif group is not None:
            late.update(node.outputs)
        elif late and late.intersection(node.inputs):
            waiting.append(node)
            late.update(node.outputs)
        else:
            nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


__all__ = ["join_neighbours"]
