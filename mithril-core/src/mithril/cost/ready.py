"""When collectives could start: as soon as their operands are made, whatever is on its way then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from mithril.cost.events import COMMUNICATION, Event
from mithril.cost.streams import Pricing, simulate_program
from mithril.ir import Graph, Node


def find_ready(graph: Graph, nodes: Collection[Node], pricing: Pricing) -> Mapping[Node, float]:
    """Return when each of some collectives could start if none of them took any time.

    Others take theirs, so that those which have to wait for a link do.

    Args:
        graph: a local one.
        nodes: collectives of it, outside of its loops.
        pricing: says what its parts take.

    Returns:
        Seconds from the start of the program, by collective.
    """
    chosen, work = frozenset(nodes), pricing.price(graph)
    steps = [replace(s, seconds=0.0) if s.node in chosen else s for s in work.steps]
    issued = [step.node for step in steps if step.node is not None]
    items = simulate_program(replace(work, steps=steps)).items
    events = (i for i in items if isinstance(i, Event) and i.stream == COMMUNICATION)
    starts = zip(issued, events, strict=True)
    return {node: event.start for node, event in starts if node in chosen}


__all__ = ["find_ready"]
