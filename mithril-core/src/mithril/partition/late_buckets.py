"""Puts collectives together with the last of them: what is reduced, and what only results need.

Sums of one group may be of different phases: that of a loss travels with gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from mithril.cost.ready import find_ready
from mithril.cost.streams import Pricing
from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.rewrite import communicates
from mithril.ops.collective import AllGather, AllReduce, Collective, ReduceScatter
from mithril.partition.bucket_filling import Filling, find_form, size_of
from mithril.partition.bucket_sizes import Member, cut_by_time, cut_evenly, cut_when_full


def join_late(graph: Graph, fill: Filling, pricing: Pricing) -> Graph:
    """Return a graph with collectives put together, each bucket issued with its last.

    What is summed inside nodes, and then between them, waits for one collective once what it waits
    for is together. So it is done until nothing changes.

    Args:
        graph: a local one; bodies of loops stay as they are.
        fill: what may travel together.
        pricing: says when what is reduced is made.
    """
    buckets = [bucket for bucket in _fill(graph, fill, pricing) if len(bucket) > 1]
    together: set[Node] = set()
    while buckets:
        joined = {bucket[-1]: fill.join(bucket) for bucket in buckets}
        graph = _join(graph, buckets, joined)
        together.update(joined.values())
        filled = _fill(graph, fill, pricing, together)
        buckets = [bucket for bucket in filled if len(bucket) > 1]
    return graph


def _join(graph: Graph, buckets: Sequence[Sequence[Node]], joined: Mapping[Node, Node]) -> Graph:
    """Return a graph with collectives in the place of the last node of each bucket."""
    absorbed = {node for bucket in buckets for node in bucket}
    late, made_late = _find_dependents(graph, absorbed)
    nodes: list[Node] = []
    tail: list[Node] = []
    for node in graph.nodes:
        if node in absorbed and node not in joined:
            continue
        if node in late and not communicates(node):
            tail.append(node)
            continue
        placed = joined.get(node, node)
        if not made_late.isdisjoint(placed.inputs):
            tail = _take_needed(tail, placed, nodes)
        nodes.append(placed)
    return Graph(graph.inputs, (*nodes, *tail), graph.outputs)


def _take_needed(tail: list[Node], node: Node, nodes: list[Node]) -> list[Node]:
    """Append the late nodes that a node needs, and return the others."""
    wanted, needed = set(node.inputs), set()
    for late in reversed(tail):
        if wanted.intersection(late.outputs):
            needed.add(late)
            wanted.update(late.inputs)
    nodes += [late for late in tail if late in needed]
    return [late for late in tail if late not in needed]


def _fill(
    graph: Graph, fill: Filling, pricing: Pricing, together: Collection[Node] = ()
) -> Iterator[list[Node]]:
    """Yield buckets; one holds one op (axes, reduction) and dtype.

    The same collective waits for all of it, or none: what others wait for sooner is not held back.

    Args:
        graph: a local one.
        fill: what may travel together.
        pricing: says when what is reduced is made.
        together: buckets that are as full as they shall be.
    """
    waiting, used = find_waiting(graph), graph.uses()
    alike: dict[object, dict[Phase, list[Member]]] = {}
    for position, node in enumerate(graph.nodes):
        if node not in together and _may_come_late(node, used) and fill.may_join(node):
            of_phase, of_any = waiting[node]
            key = node.op, node.inputs[0].type.dtype, of_phase, find_form(node)
            phases = alike.setdefault(key, {})
            member = Member(node, size_of(node), position, of_any)
            phases.setdefault(node.phase, []).append(member)
    groups = [found for phases in alike.values() for found in _join_phases(phases, fill)]
    several = [member.node for found in groups for member in found if len(found) > 1]
    timed = [node for node in several if _is_timed(node, fill)]
    ready = find_ready(graph, timed, pricing) if timed else {}
    for found in groups:
        for bucket in _cut(found, fill, ready) if len(found) > 1 else []:
            yield [member.node for member in bucket]


def _join_phases(phases: Mapping[Phase, list[Member]], fill: Filling) -> Iterator[list[Member]]:
    """Yield the members of each phase, with those of the phases before if start-up is most of them.

    What is large stays in its phase, so that nothing large is kept for the next one. At the end of
    a pipeline's run a loss may be summed behind what the backward left: members are in their order.
    """
    carried: list[Member] = []
    known = [phase for phase in Phase if phase in phases]
    for phase in known:
        found = sorted([*carried, *phases[phase]], key=attrgetter("position"))
        may_wait = phase != known[-1] and all(fill.is_start_up(member.node) for member in found)
        carried = found if may_wait else []
        if not may_wait:
            yield found


def _is_timed(node: Node, fill: Filling) -> bool:
    return isinstance(node.op, Collective) and fill.is_timed(node.op)


def _cut(
    members: Sequence[Member], fill: Filling, ready: Mapping[Node, float]
) -> list[list[Member]]:
    """Return members of one kind in buckets."""
    op = members[0].node.op
    assert isinstance(op, Collective), "only collectives travel"
    limit = fill.find_limit(op)
    if fill.asked.nbytes is not None:
        return cut_evenly(members, limit)
    if not isinstance(op, AllReduce) and not fill.is_timed(op):
        if isinstance(op, AllGather) and members[0].node.phase != Phase.update:
            return cut_evenly([member for member in members if member.bytes <= limit], limit)
        return cut_when_full(members, limit)
    timed = [replace(member, ready=ready.get(member.node, 0.0)) for member in members]
    return cut_by_time(timed, fill.find_link(op))


def _may_come_late(node: Node, used: Collection[Value]) -> bool:
    """Whether a collective reduces, or brings together what only results need, or an update made.

    What is exchanged again is needed at once: activations are computed from it.
    """
    if node.cause is not None and node.cause.is_again:
        return False
    if isinstance(node.op, AllGather):
        return node.phase == Phase.update or not any(value in used for value in node.outputs)
    return isinstance(node.op, AllReduce | ReduceScatter)


def find_waiting(graph: Graph) -> dict[Node, tuple[int, int]]:
    """Return for each node the positions of the first other collectives that wait for it.

    The first is among those of forward and backward, for a node of these: what updates comes after
    all gradients anyway. The second is among all.
    """
    never = len(graph.nodes)
    needed_early: dict[Value, int] = {}
    needed: dict[Value, int] = {}
    found: dict[Node, tuple[int, int]] = {}
    for position in reversed(range(never)):
        node = graph.nodes[position]
        is_update = node.phase == Phase.update
        early = min((needed_early.get(value, never) for value in node.outputs), default=never)
        first = min((needed.get(value, never) for value in node.outputs), default=never)
        found[node] = (first if is_update else early, first)
        if communicates(node):
            early, first = (never if is_update else position), position
        for value in node.inputs:
            if early < needed_early.get(value, never):
                needed_early[value] = early
            if first < needed.get(value, never):
                needed[value] = first
    return found


def _find_dependents(graph: Graph, sources: set[Node]) -> tuple[set[Node], set[Value]]:
    """Return the nodes that need a result of one of the sources, and the results of all these."""
    late_values = {value for node in sources for value in node.outputs}
    dependents = set()
    for node in graph.nodes:
        if node not in sources and late_values.intersection(node.inputs):
            dependents.add(node)
            late_values.update(node.outputs)
    return dependents, late_values


__all__ = ["find_waiting", "join_late"]
