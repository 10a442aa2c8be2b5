"""What hides communication: how long each collective of a program goes on beside computing layers.

It is read off the same simulation as the timeline (`mithril.cost.streams`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mithril.cost.streams import Pricing, Step, simulate_program
from mithril.ir import Graph, Node


@dataclass(frozen=True, slots=True, eq=False)
class Hiding:
    """What of the communication of a program is hidden.

    Args:
        seconds: of a run of the program.
        taken: seconds of each collective, each time that it runs.
        behind: seconds of each collective that pass while a layer computes, by layer path, on
            average over the times that it runs.
    """

    seconds: float
    taken: Mapping[Node, float]
    behind: Mapping[Node, Mapping[str, float]]

    def find_hidden(self, node: Node) -> float:
        """Return the seconds of a collective that pass while something is computed."""
        return sum(self.behind.get(node, {}).values())

    def find_exposed(self, node: Node) -> float:
        """Return the seconds of a collective in which nothing is computed."""
        return self.taken[node] - self.find_hidden(node)


def find_hiding(graph: Graph, pricing: Pricing) -> Hiding:
    """Return what of the communication of a program goes on beside what computes.

    Args:
        graph: a local one.
        pricing: says what its parts take.
    """
    work = pricing.price(graph)
    simulated = simulate_program(work, tells_events=False)
    taken: dict[Node, float] = {}
    times: dict[Node, int] = {}
    _list_taken(work.steps, 1, taken, times)
    behind = {
        node: {layer: seconds / times[node] for layer, seconds in layers.items()}
        for node, layers in simulated.totals.behind.items()
    }
    return Hiding(simulated.seconds, taken, behind)


def _list_taken(
    steps: Sequence[Step], count: int, taken: dict[Node, float], times: dict[Node, int]
) -> None:
    for step in steps:
        if step.node is not None:
            taken[step.node], times[step.node] = step.seconds, count
        _list_taken(step.body, count * step.count, taken, times)


__all__ = ["Hiding", "find_hiding"]
