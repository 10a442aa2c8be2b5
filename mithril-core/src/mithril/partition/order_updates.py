"""Has parameters updated in the order in which their gradients arrive.

In a graph updates stand in the order of the parameters, and gradients are made from the last layer
to the first. So the first update would wait for the last gradient, and all others behind it. In
the order of arrival those of the last layers are computed while other gradients are on their way,
and what is gathered of them travels as early.
"""

from __future__ import annotations

from dataclasses import replace

from mithril.cost import Hardware
from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.rewrite import communicates
from mithril.plan import Program


def order_updates(program: Program, hardware: Hardware) -> Program:
    """Return the program with its updates in the order of what they wait for.

    Args:
        program: a local program, with each collective where its operands are made.
        hardware: the profile, which says whether collectives go on beside what computes.
    """
    if not hardware.hides_collectives:
        return program
    return replace(program, graph=_order(program.graph))


def _order(graph: Graph) -> Graph:
    updates = [node for node in graph.nodes if node.phase == Phase.update]
    others = [node for node in graph.nodes if node.phase != Phase.update]
    made = {value for node in updates for value in node.outputs}
    if not updates or any(made.intersection(node.inputs) for node in others):
        return graph
    arrivals = _list_arrivals(graph)
    updates.sort(key=arrivals.__getitem__)
    return Graph(graph.inputs, (*others, *updates), graph.outputs)


def _list_arrivals(graph: Graph) -> dict[Node, int]:
    """Return for each node the position of the last collective that it waits for; -1 for none."""
    of: dict[Value, int] = {}
    found = {}
    for position, node in enumerate(graph.nodes):
        found[node] = max((of.get(value, -1) for value in node.inputs), default=-1)
        made = position if communicates(node) else found[node]
        of |= dict.fromkeys(node.outputs, made)
    return found


__all__ = ["order_updates"]
