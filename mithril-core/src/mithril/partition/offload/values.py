"""Values that go to the host arena while nobody needs them: activations, and what is spilled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.cost.liveness import Liveness
from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.start import Start
from mithril.ops.host import FromHost, ToHost, find_on_host
from mithril.partition.offload.insert import DependencyFinder, insert
from mithril.plan import Execution

ROUNDS = 1000
"""So many moments of a peak are looked at; after each there is less, or it is the last."""


@dataclass(frozen=True, slots=True, eq=False)
class _Family:
    """A value and the views of it, which share its memory.

    Args:
        origin: the value.
        views: the nodes that make them, in order.
    """

    origin: Value
    views: tuple[Node, ...]

    @property
    def values(self) -> frozenset[Value]:
        return frozenset((self.origin, *(node.outputs[0] for node in self.views)))


@dataclass(frozen=True, slots=True, eq=False)
class _Gap:
    """A value that nobody needs for a while.

    Args:
        family: the value and its views.
        after: position of the last node that needs it before.
        before: position of the first node that needs it again.
    """

    family: _Family
    after: int
    before: int


def _find_families(graph: Graph) -> list[_Family]:
    """Return what a graph makes that can be moved, with its views; no inputs, nor outputs."""
    of: dict[Value, Value] = {}
    views: dict[Value, list[Node]] = {}
    kept = set(graph.outputs.values())
    on_host = find_on_host(graph)
    for node in graph.nodes:
        first = node.inputs[0] if node.inputs else None
        if node.op.is_view and len(node.outputs) == 1:
            if first in of:
                of[node.outputs[0]] = of[first]
                views[of[first]].append(node)
        elif node.inputs and not isinstance(node.op, Start):
            for value in node.outputs:
                if value not in on_host:
                    of[value], views[value] = value, []
    lost = {of[value] for value in kept if value in of}
    return [_Family(v, tuple(nodes)) for v, nodes in views.items() if v not in lost]


def find_activations(graph: Graph, threshold: int) -> list[_Gap]:
    """Return what the backward needs of the forward, and from when to when nobody does."""
    at = {node: position for position, node in enumerate(graph.nodes)}
    uses, producers = graph.uses(), graph.producers()
    found = []
    for family in _find_families(graph):
        maker = producers[family.origin]
        slices = maker.op.iterations if family.origin in maker.stacks else 1  # which count
        if family.origin.type.size <= threshold * slices:
            continue
        users = _list_users(family, uses)
        late = [at[user] for user in users if user.phase != Phase.forward]
        early = [at[user] for user in users if user.phase == Phase.forward]
        gap = _Gap(family, max([at[maker], *early]), min(late, default=-1))
        if late and maker.phase == Phase.forward and gap.after < gap.before:
            found.append(gap)
    return found


def _list_users(family: _Family, uses: Mapping[Value, Sequence[tuple[Node, int]]]) -> list[Node]:
    return list(dict.fromkeys(user for v in family.values for user, _ in uses.get(v, ())))


def spill(graph: Graph, least: int, arena: str, overlaps: bool) -> Graph:
    """Move what is alive across the peak, until nothing that is large enough is.

    Args:
        graph: a local one.
        least: bytes of what is large enough.
        arena: where the host arena lies.
        overlaps: whether the engine computes while something is copied.
    """
    for _ in range(ROUNDS):
        peak = Liveness(Execution()).measure(graph).at
        if peak is None:
            break
        gaps = _find_gaps(graph, graph.nodes.index(peak), least)
        if not gaps:
            break
        graph = move(graph, gaps, arena, overlaps)
    return graph


def _find_gaps(graph: Graph, moment: int, least: int) -> list[_Gap]:
    """Return what is alive while a node runs and not used then.

    Args:
        graph: a local one.
        moment: position of the node.
        least: bytes of what counts.
    """
    at = {node: position for position, node in enumerate(graph.nodes)}
    uses, producers = graph.uses(), graph.producers()
    found = []
    for family in _find_families(graph):
        used = [at[user] for user in _list_users(family, uses)]
        made = at[producers[family.origin]]
        if family.origin.type.nbytes < least or moment in used or made >= moment:
            continue
        later = [position for position in used if position > moment]
        earlier = max((position for position in used if position < moment), default=made)
        # Between two neighbours there is no time in which it could be away.
        if later and earlier + 1 < min(later) and not _is_copied(graph, family):
            found.append(_Gap(family, earlier, min(later)))
    return found


def _is_copied(graph: Graph, family: _Family) -> bool:
    """Return whether a value has come from the host: it is used at once."""
    return any(isinstance(n.op, FromHost) and n.outputs[0] is family.origin for n in graph.nodes)


# ------------------------------------------------------------------ moving them


def move(graph: Graph, gaps: Sequence[_Gap], arena: str, overlaps: bool) -> Graph:
    """Return a graph in which values are on the host in their gaps."""
    if not gaps:
        return graph
    behind: defaultdict[int, list[Node]] = defaultdict(list)
    ahead: defaultdict[int, list[Node]] = defaultdict(list)
    renamed: list[tuple[int, dict[Value, Value]]] = []
    in_order = sorted(gaps, key=lambda gap: gap.before)
    finder = DependencyFinder(graph, {v for gap in gaps for v in gap.family.values})
    at = {node: position for position, node in enumerate(graph.nodes)}
    for number, gap in enumerate(in_order):
        place = gap.before
        if overlaps and number:
            place = max(in_order[number - 1].before, gap.after + 1)
        # A view that is made later reads what was brought back, like any other node.
        views = [view for view in gap.family.views if at[view] < gap.before]
        copy, back = _copy(graph, gap, views, arena, finder.find(gap.before, place))
        behind[gap.after].append(copy)
        ahead[place] += back
        family = (gap.family.origin, *(view.outputs[0] for view in views))
        made = (node.outputs[0] for node in back)
        renamed.append((gap.before, dict(zip(family, made, strict=True))))
    return insert(graph, behind, ahead, renamed)


def _copy(
    graph: Graph, gap: _Gap, views: Sequence[Node], arena: str, dependency: Value | None
) -> tuple[Node, list[Node]]:
    """Return what copies a value to the host, and what brings it and some views of it back."""
    origin, first, last = gap.family.origin, graph.nodes[gap.before], graph.nodes[gap.after]
    maker = next(node for node in graph.nodes if origin in node.outputs)
    held, fetched = Value(origin.type), Value(origin.type)
    scope, source = maker.scope, maker.source
    copy = Node(ToHost(arena), (origin,), (held,), scope, source, last.phase)
    given = (held,) if dependency is None else (held, dependency)
    back = [Node(FromHost(is_last=True), given, (fetched,), scope, source, first.phase)]
    known = {origin: fetched}
    for view in views:
        inputs = tuple(known.get(value, value) for value in view.inputs)
        again = Value(view.outputs[0].type)
        known[view.outputs[0]] = again
        back.append(replace(view, inputs=inputs, outputs=(again,), phase=first.phase))
    return copy, back


__all__ = ["find_activations", "move", "spill"]
