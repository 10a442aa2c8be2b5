"""What goes over the borders of loops, where it may have to be moved.

The body of a loop is planned once, together with everything around it. A link says that a value
goes over the border of a loop, or from one iteration into the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.rewrite import walk
from mithril.mesh import Sharding
from mithril.types import TensorType


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


def links(graph: Graph) -> Iterator[Link]:
    """Yield the links of all loops in a graph."""
    for node, times in walk(graph):
        for body in node.op.bodies:
            yield from _links_of(node, body, times)


def _links_of(node: Node, body: Graph, times: int) -> Iterator[Link]:
    op, results = node.op, tuple(body.outputs.values())
    carried, first_slice = len(op.carries), len(node.inputs) - len(op.slices)
    for position, (outer, inside) in enumerate(zip(node.inputs, body.inputs, strict=True)):
        yield Link(outer, inside, times, node, slices=position >= first_slice)
    for after, carry in zip(results, op.carries, strict=False):
        if after is not carry:  # a carry that stays as it is goes nowhere
            yield Link(after, carry, times * op.iterations, node)
    for carry, last in zip(op.carries, node.outputs, strict=False):
        yield Link(carry, last, times, node, leaves=True)
    for made, outer in zip(results[carried:], node.outputs[carried:], strict=True):
        yield Link(made, outer, times, node, stacks=True)


def add_leading_dim(sharding: Sharding) -> Sharding:
    """Return the sharding of a stack of values that lie so."""
    return Sharding(sharding.mesh, ((), *sharding.dims), sharding.partial)


def drop_leading_dim(sharding: Sharding) -> Sharding:
    """Return the sharding of a slice of a value that lies so."""
    return Sharding(sharding.mesh, sharding.dims[1:], sharding.partial)


def split_slice(sharding: Sharding, type: TensorType, pads: bool) -> Sharding:
    """Return how a slice of a stack lies that rests split over its devices.

    What splits the stack's leading dimension splits another one of the slice, the first that
    divides: of a slice that only some devices have the others would have to hold the whole, for
    all iterations at once. Where nothing of the slice can be split, it is whole.

    Args:
        sharding: of the stack.
        type: of the stack.
        pads: whether a dimension may be split that does not divide.
    """
    inside, axes = drop_leading_dim(sharding), sharding.dims[0]
    parts = sharding.mesh.product(axes)
    sizes = inside.local_shape(type.shape[1:])
    divides = [i for i, size in enumerate(sizes) if size and size % parts == 0]
    large = [i for i, size in enumerate(sizes) if size > parts] if pads else []
    found = [*divides, *sorted(large, key=lambda i: -sizes[i])][:1]
    dims = ((*held, *axes) if i in found else held for i, held in enumerate(inside.dims))
    return Sharding(inside.mesh, tuple(dims), inside.partial)
