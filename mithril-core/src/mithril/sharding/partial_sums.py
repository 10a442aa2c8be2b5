"""Which values may be partial sums over a mesh axis, by the candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mithril.ir import Node, Rule, Value
from mithril.sharding.regions import Link


def find_partial(
    nodes: Sequence[Node],
    joints: Sequence[Link],
    axis: str,
    rules: Mapping[Node, Rule],
    factors: Mapping[Node, Mapping[str, tuple[str, ...]]],
    forced: Mapping[Node, Mapping[str, tuple[str, ...]]],
    copying: frozenset[Node],
) -> frozenset[Value]:
    """Return the values that some admitted choice makes partial sums over the axis.

    A linear group is an option only where one of its operands can be such a sum; without this,
    every linear op would have one more option on every axis.
    """
    found: set[Value] = set()
    size = -1
    while len(found) > size:  # more than once only because of loops
        size = len(found)
        _spread(found, nodes, axis, rules, factors, forced, copying)
        found.update(link.target for link in joints if link.source in found)
        if not joints:
            break
    return frozenset(found)


def _spread(
    found: set[Value],
    nodes: Sequence[Node],
    axis: str,
    rules: Mapping[Node, Rule],
    factors: Mapping[Node, Mapping[str, tuple[str, ...]]],
    forced: Mapping[Node, Mapping[str, tuple[str, ...]]],
    copying: frozenset[Node],
) -> None:
    for node in nodes:
        rule = rules[node]
        admitted = forced.get(node, {}).get(axis) or factors[node].get(axis, ())
        for value, dims in zip(node.outputs, rule.results, strict=True):
            if any(rule.leaves(factor, dims) == "sum" for factor in admitted):
                found.add(value)
        if node in copying or not forced.get(node, {}).get(axis):
            groups = ({node.inputs[i] for i in group} for group in rule.linear)
            if any(found & group for group in groups):
                found.update(node.outputs)
