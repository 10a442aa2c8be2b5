"""Puts work behind the start of a collective that has nothing to go on beside.

Where a collective is waited for right after it starts, what was computed before it in the same
block, and is needed neither for it nor by anything before its first use, is computed while it is on
its way: as the gradient of a weight while that of the activations is summed over devices (Shoeybi
et al., "Megatron-LM", and later versions of it).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mithril.cost.hidden import Hiding
from mithril.ir import Graph, Node, Phase, Value
from mithril.ops.collective import collective_of
from mithril.partition.overlap.starts import LEAST_EXPOSED
from mithril.partition.overlap.stretches import find_stretches

REACH = 64
"""So many nodes before a collective are looked at."""


def postpone(graph: Graph, hiding: Hiding, seconds: Mapping[Node, float]) -> Graph:
    """Return a graph in which work follows the starts of collectives that nothing hides.

    Args:
        graph: a local one.
        hiding: what of its communication is hidden now.
        seconds: that nodes take; those that are not named take none.
    """
    stretches = find_stretches(graph)
    nodes: list[Node] = []
    found_before: set[Node] = set()  # each is moved once
    for position, node in enumerate(graph.nodes):
        nodes.append(node)
        if collective_of(node.op) is None or node.phase == Phase.update:
            continue
        exposed = hiding.find_exposed(node)
        if exposed <= LEAST_EXPOSED * hiding.taken[node]:
            continue
        start = stretches.find_start(stretches.of[position])
        window = set(graph.nodes[max(start, position - REACH) : position]) - found_before
        late = _choose(nodes, window, exposed, seconds)
        if late:
            found_before.update(late)
            _move_to_end(nodes, late)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _choose(
    nodes: list[Node], window: set[Node], exposed: float, seconds: Mapping[Node, float]
) -> dict[Node, None]:
    """Return what can be computed behind the last node, in order, until it takes long enough."""
    needed: set[Value] = set()
    late: list[Node] = []
    total, waiting, phase = 0.0, len(window), nodes[-1].phase
    for other in reversed(nodes):
        if not waiting or total >= exposed:
            break
        waiting -= other in window
        is_fixed = other not in window or other.op.bodies or collective_of(other.op) is not None
        if is_fixed or not needed.isdisjoint(other.outputs) or other.phase != phase:
            needed.update(other.inputs)
            continue
        late.append(other)
        total += seconds.get(other, 0.0)
    return dict.fromkeys(reversed(late)) if total else {}


def _move_to_end(nodes: list[Node], late: Collection[Node]) -> None:
    """Move some of the last nodes behind all others."""
    left, start = len(late), len(nodes)
    while left:
        start -= 1
        left -= nodes[start] in late
    nodes[start:] = [*(node for node in nodes[start:] if node not in late), *late]


__all__ = ["postpone"]
