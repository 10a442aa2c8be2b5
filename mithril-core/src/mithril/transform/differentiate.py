"""Reverse-mode differentiation of a graph, in one sweep.

The result is the joint graph: the forward nodes, unchanged, then the backward nodes. A gradient
enters through one new input per differentiated output (`seed_of(name)`) and leaves through one new
output per requested input (`gradient_of(name)`). Semantics are those of one device.
"""

from __future__ import annotations

from collections.abc import Sequence

from mithril.errors import GraphError, listing
from mithril.ir import Builder, Graph, Node, Phase, Tensor, Value
from mithril.transform.simplify import eliminate_dead


def seed_of(output: str) -> str:
    """Return the name of the input that carries the gradient of an output."""
    return f"output_gradients.{output}"


def gradient_of(name: str) -> str:
    """Return the name of the output that carries the gradient of an input."""
    return f"gradients.{name}"


def differentiate(graph: Graph, outputs: Sequence[str], inputs: Sequence[str]) -> Graph:
    """Return the joint graph of outputs and gradients.

    Args:
        graph: the forward graph.
        outputs: names of the outputs whose gradients are given; the others count as zero.
        inputs: names of the inputs whose gradients are wanted.

    Raises:
        GraphError: an output or a wanted input is not of a float dtype.
    """
    _check_float({name: graph.outputs[name] for name in outputs}, "output")
    wanted = {name: graph.input(name) for name in inputs}
    _check_float(wanted, "input")
    builder = Builder.extending(graph)
    sweep = _Sweep(builder, _reached(graph, set(wanted.values())))
    with builder.at(phase=Phase.backward):
        for name in outputs:
            value = graph.outputs[name]
            sweep.add(value, builder.input(value.type, seed_of(name)))
    for node in reversed(graph.nodes):
        sweep.visit(node)
    results = {name: Tensor(builder, value) for name, value in graph.outputs.items()}
    for name, value in wanted.items():
        results[gradient_of(name)] = builder.named(sweep.total(value), gradient_of(name))
    return eliminate_dead(builder.build(results))


class _Sweep:
    """Collects cotangents while the nodes are visited from last to first."""

    def __init__(self, builder: Builder, reached: set[Value]) -> None:
        self._builder = builder
        self._reached = reached
        self._cotangents: dict[Value, Tensor] = {}

    def add(self, value: Value, cotangent: Tensor) -> None:
        """Add to the cotangent of a value."""
        if cotangent.type != value.type:
            raise GraphError(
                f"gradient of {value!r} has type {cotangent.type}; please report this op"
            )
        before = self._cotangents.get(value)
        self._cotangents[value] = cotangent if before is None else before + cotangent

    def visit(self, node: Node) -> None:
        """Pass the cotangents of a node's results on to its operands."""
        cotangents = [self._cotangents.get(value) for value in node.outputs]
        if all(c is None for c in cotangents) or not self._reached.intersection(node.inputs):
            return
        inputs = [Tensor(self._builder, value) for value in node.inputs]
        outputs = [Tensor(self._builder, value) for value in node.outputs]
        with self._builder.at(scope=node.scope, source=node.source, phase=Phase.backward):
            found = node.op.gradient(inputs, outputs, cotangents)
            for value, cotangent in zip(node.inputs, found, strict=True):
                if cotangent is not None and value in self._reached:
                    self.add(value, cotangent)

    def total(self, value: Value) -> Tensor:
        """Return the gradient of a value, zeros when none reached it."""
        if value in self._cotangents:
            return self._cotangents[value]
        from mithril.ops import broadcast_to

        with self._builder.at(phase=Phase.backward):
            return broadcast_to(self._builder.constant(0, value.type.dtype), value.type.shape)


def _reached(graph: Graph, sources: set[Value]) -> set[Value]:
    """Return the values that depend on one of the sources, sources included."""
    reached = set(sources)
    for node in graph.nodes:
        if reached.intersection(node.inputs):
            reached.update(value for value in node.outputs if value.type.dtype.is_float)
    return reached


def _check_float(values: dict[str, Value], what: str) -> None:
    wrong = [name for name, value in values.items() if not value.type.dtype.is_float]
    if wrong:
        raise GraphError(
            f"{what} {listing(wrong)} has dtype {values[wrong[0]].type.dtype}; gradients need a "
            f"float dtype"
        )
