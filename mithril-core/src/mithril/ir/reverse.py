"""One reverse sweep: cotangents passed from results to operands, node by node.

Whoever differentiates a piece of a graph (a whole model, the body of a loop, the expansion of a
fused op) seeds a `Sweep`, lets it visit the nodes from last to first, and reads what it collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from mithril.errors import GraphError
from mithril.ir.graph import Graph, Node, Phase, Value
from mithril.ir.op import Op
from mithril.ir.tensor import Builder, Tensor

Visitors = Mapping[type[Op], Callable[[Node, "Sweep"], None]]
"""What visits the nodes of some ops, by their class."""


class Sweep:
    """Collects cotangents while the nodes are visited from last to first.

    Args:
        builder: where gradient nodes go; it holds the nodes that are visited.
        active: the values that depend on what is differentiated (see `active_values`).
        visitors: what visits the nodes of ops whose gradient is more than `Op.gradient`, by class.
    """

    def __init__(
        self,
        builder: Builder,
        active: set[Value],
        visitors: Visitors | None = None,
    ) -> None:
        self.builder = builder
        self.active = active
        self.visitors = visitors or {}
        self._cotangents: dict[Value, Tensor] = {}

    def add(self, value: Value, cotangent: Tensor) -> None:
        """Add to the cotangent of a value.

        Raises:
            GraphError: the types differ; a fault of the op that gave the cotangent.
        """
        if cotangent.type != value.type:
            raise GraphError(
                f"gradient of {value!r} has type {cotangent.type}; please report this op"
            )
        before = self._cotangents.get(value)
        self._cotangents[value] = cotangent if before is None else before + cotangent

    def visit(self, node: Node) -> None:
        """Pass the cotangents of a node's results on to its operands."""
        visitor = self.visitors.get(type(node.op))
        if visitor is not None:
            visitor(node, self)
            return
        cotangents = [self.of(value) for value in node.outputs]
        if all(c is None for c in cotangents) or not self.active.intersection(node.inputs):
            return
        inputs = [Tensor(self.builder, value) for value in node.inputs]
        outputs = [Tensor(self.builder, value) for value in node.outputs]
        with self.builder.at(scope=node.scope, source=node.source, phase=Phase.backward):
            found = node.op.gradient(inputs, outputs, cotangents)
            for value, cotangent in zip(node.inputs, found, strict=True):
                if cotangent is not None and value in self.active:
                    self.add(value, cotangent)

    def of(self, value: Value) -> Tensor | None:
        """Return the cotangent of a value, None when none reached it."""
        return self._cotangents.get(value)


def active_values(graph: Graph, sources: Iterable[Value]) -> set[Value]:
    """Return the float values that depend on one of the sources, and the sources."""
    active = set(sources)
    for node in graph.nodes:
        if active.intersection(node.inputs):
            active.update(value for value in node.outputs if value.type.dtype.is_float)
    return active
