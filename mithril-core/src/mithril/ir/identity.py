"""What a graph computes, as a key: equal for graphs that may share a plan."""

from __future__ import annotations

from collections.abc import Hashable

from mithril.ir.graph import Graph
from mithril.ir.op import Op


def identify_graph(graph: Graph) -> Hashable:
    """Return a key of a graph: its ops with their attributes, operands, types, names and lines.

    The class of an op is a part of it: one that is defined again has another.

    >>> from mithril.ir import Builder
    >>> identify_graph(Builder().build({})) == identify_graph(Builder().build({}))
    True
    """
    places = {value: place for place, value in enumerate(graph.values())}
    return (
        tuple((value.name, value.type) for value in graph.inputs),
        tuple(
            (_identify_op(n.op), tuple(map(places.__getitem__, n.inputs)), n.scope, n.source)
            for n in graph.nodes
        ),
        tuple((name, places[value]) for name, value in graph.outputs.items()),
    )


def _identify_op(op: Op) -> Hashable:
    """Return a key of an op; 0.0 and -0.0, 2 and 2.0 are equal, and differ as texts."""
    attributes = op.attributes.values()
    return type(op), *(identify_graph(x) if isinstance(x, Graph) else repr(x) for x in attributes)


__all__ = ["identify_graph"]
