"""A graph with loops as one problem: its regions, and the links between them.

The body of a loop is planned once, together with everything around it. A region is a graph and how
often it runs; a link says that a value goes over the border of a loop, or from one iteration into
the next, where it may have to be moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mithril.ir import Graph, Node, Phase, Repeat, Value
from mithril.mesh import Sharding


@dataclass(frozen=True, slots=True)
class Region:
    """A graph and how often it runs."""

    graph: Graph
    times: int


@dataclass(frozen=True, slots=True)
class Link:
    """A value that becomes another one without an op.

    Args:
        source: the value.
        target: what it becomes.
        times: how often it does.
        node: the loop.
        slices: the target is a slice of the source, along its leading dimension.
        stacks: the source is a slice of the target.
        leaves: the source is a carry, the target what it is after the last iteration.
    """

    source: Value
    target: Value
    times: int
    node: Node
    slices: bool = False
    stacks: bool = False
    leaves: bool = False

    @property
    def phase(self) -> Phase:
        """When the value is used."""
        return self.node.phase

    def shift(self) -> int:
        """Return how many dimensions the target has more than the source."""
        return int(self.stacks) - int(self.slices)


def regions(graph: Graph, times: int = 1) -> Iterator[Region]:
    """Yield the graph and the bodies of its loops, outermost first."""
    yield Region(graph, times)
    for node in graph.nodes:
        if isinstance(node.op, Repeat):
            yield from regions(node.op.body, times * node.op.count)


def links(graph: Graph, times: int = 1) -> Iterator[Link]:
    """Yield the links of all loops in a graph."""
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Repeat):
            continue
        inner = times * op.count
        first_slice = len(node.inputs) - op.stacked
        for position, (outer, inside) in enumerate(zip(node.inputs, op.body.inputs, strict=True)):
            yield Link(outer, inside, times, node, slices=position >= first_slice)
        for after, carry in zip(op.next_carries, op.carries, strict=True):
            if after is not carry:  # a carry that stays as it is goes nowhere
                yield Link(after, carry, inner, node)
        for carry, last in zip(op.carries, node.outputs, strict=False):
            yield Link(carry, last, times, node, leaves=True)
        for made, outer in zip(op.made, node.outputs[op.carried :], strict=True):
            yield Link(made, outer, times, node, stacks=True)
        yield from links(op.body, inner)


def lifted(sharding: Sharding) -> Sharding:
    """Return the sharding of a stack of values that lie so."""
    return Sharding(sharding.mesh, ((), *sharding.dims), sharding.partial)


def lowered(sharding: Sharding) -> Sharding:
    """Return the sharding of a slice of a value that lies so."""
    return Sharding(sharding.mesh, sharding.dims[1:], sharding.partial)
