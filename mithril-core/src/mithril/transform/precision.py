"""Mixed precision: casts put into a graph so that each op computes in the dtype a policy gives it.

The graph comes traced in the activation dtype, with one cast behind every parameter of the policy.
That cast is put off while a parameter is only moved (transposed, reshaped, looked up in), so that
what is contracted reaches the compute dtype without being rounded on the way. The pass runs before
differentiation: backward computations follow from the casts, and gradients arrive in the dtype of
their parameters. Ops are told apart by their rules and costs, not by their names.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from dataclasses import replace

from mithril.ir import Builder, Graph, Node, Tensor, Tensors, Types, Value
from mithril.ir.rewrite import inline
from mithril.ops import Cast, cast
from mithril.options import Precision
from mithril.types import DType, TensorType


def mix(graph: Graph, precision: Precision, parameters: Container[str]) -> Graph:
    """Return the graph with the casts of a policy.

    Args:
        graph: a forward graph, traced in `precision.activations`.
        precision: the policy; `Precision` has its rules.
        parameters: names of the inputs that are parameters.
    """
    mixer = _Mixer(precision)
    mixer.parameters.update(value for value in graph.inputs if value.name in parameters)
    builder = Builder()
    inputs = [builder.input(value.type, value.name) for value in graph.inputs]
    made = mixer.mix(_with_wide_scalars(graph, precision.activations), builder, inputs)
    names = {name: value.name for name, value in graph.outputs.items()}
    return builder.build({name: builder.assign_name(x, names[name]) for name, x in made.items()})


def output_types(graph: Graph, precision: Precision) -> dict[str, TensorType]:
    """Return the types of the outputs that a graph has after `mix`.

    Args:
        graph: a forward graph, traced in `precision.activations`.
        precision: the policy.
    """
    wide = _with_wide_scalars(graph, precision.activations) if precision.is_given else graph
    return {name: value.type for name, value in wide.outputs.items()}


class _Mixer:
    """One run over a graph, and the bodies in it, from first node to last.

    A value is held in its old type, or, if it is `raw`, a parameter or a part of one, as it is
    before its cast to the activation dtype.
    """

    def __init__(self, precision: Precision) -> None:
        self.parameters: set[Value] = set()
        self._precision = precision
        self._raw: set[Value] = set()
        self._casts: dict[tuple[Value, DType], Tensor] = {}

    def mix(self, graph: Graph, builder: Builder, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Append the graph with casts to a builder that has its inputs, and return its outputs."""
        made = inline(graph, builder, inputs, self._visit)
        return {name: self._whole(value, made[name]) for name, value in graph.outputs.items()}

    def _visit(self, builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if node.op.bodies:
            return self._finish(node, self._inside(builder, node, operands))
        if isinstance(node.op, Cast) and self._is_kept(node.inputs[0]):
            if node.op.dtype == self._precision.activations:
                return [self._put_off(node.outputs[0], operands[0])]
            return [self._cast(operands[0], node.op.dtype)]
        if self._only_moves(node):
            (moved,) = builder.apply(node.op, *operands)
            return [self._put_off(node.outputs[0], moved)]
        if self._contracts(node):
            narrow = [self._narrow(x) if x.dtype.is_float else x for x in operands]
            return self._finish(node, builder.apply(node.op, *narrow))
        if self._raw.isdisjoint(node.inputs):
            return None
        return builder.copy(node, list(map(self._whole, node.inputs, operands)))

    def _whole(self, value: Value, held: Tensor) -> Tensor:
        """Return an old value in its old type."""
        if value not in self._raw:
            return held
        return held.builder.assign_name(self._cast(held, value.type.dtype), value.name)

    def _narrow(self, held: Tensor) -> Tensor:
        return self._cast(held, self._precision.compute)

    def _finish(self, node: Node, results: Collection[Tensor]) -> Tensors:
        return [
            cast(new, old.type.dtype) if old.type.dtype.is_float else new
            for old, new in zip(node.outputs, results, strict=True)
        ]

    def _is_kept(self, value: Value) -> bool:
        return value in self._raw or value in self.parameters

    def _put_off(self, value: Value, raw: Tensor) -> Tensor:
        """Hold a value as it is before its cast; one with a name passes between layers: cast."""
        if value.name:
            return self._cast(raw, value.type.dtype)
        self._raw.add(value)
        return raw

    def _only_moves(self, node: Node) -> bool:
        floats = [value for value in node.inputs if value.type.dtype.is_float]
        if len(floats) != 1 or floats[0] not in self._raw or len(node.outputs) != 1:
            return False
        return node.cost().flops == 0

    def _contracts(self, node: Node) -> bool:
        """Whether the policy has the node compute in the compute dtype."""
        floats = {value.type.dtype for value in node.inputs if value.type.dtype.is_float}
        mixed = self._precision.compute != self._precision.activations
        return (
            mixed and floats == {self._precision.activations} and node.op.contracts(*_types(node))
        )

    def _cast(self, tensor: Tensor, dtype: DType) -> Tensor:
        key = (tensor.value, dtype)
        if key not in self._casts:
            self._casts[key] = cast(tensor, dtype)
        return self._casts[key]

    def _inside(self, builder: Builder, node: Node, operands: Tensors) -> Tensors:
        """Mix the bodies; what is no carry may be a parameter before its cast."""
        given: list[Tensor] = []
        bodies = []
        for body in node.op.bodies:
            inner, inputs, given = Builder(), [], []
            for outer, held, value in zip(node.inputs, operands, body.inputs, strict=True):
                is_raw = outer in self._raw and value not in node.op.carries
                given.append(held if is_raw else self._whole(outer, held))
                type = TensorType(value.type.shape, given[-1].dtype)
                inputs.append(inner.input(type, value.name))
                if is_raw:
                    self._raw.add(value)
                if outer in self.parameters:
                    self.parameters.add(value)
            bodies.append(inner.build(self.mix(body, inner, inputs)))
        return builder.apply(node.op.with_bodies(bodies), *given)


def _with_wide_scalars(graph: Graph, activations: DType) -> Graph:
    """Return the graph with its scalar outputs, such as a loss, as before they were rounded."""
    producers = graph.producers()

    def wide(value: Value) -> Value:
        node = producers.get(value)
        if node is None or not isinstance(node.op, Cast) or value.type.rank:
            return value
        (source,) = node.inputs
        is_wider = source.type.dtype.is_float
        is_wider &= source.type.dtype.itemsize > value.type.dtype.itemsize
        return source if is_wider and value.type.dtype == activations else value

    outputs = {name: wide(value) for name, value in graph.outputs.items()}
    return replace(graph, outputs=outputs)


def _types(node: Node) -> tuple[Types, Types]:
    return [value.type for value in node.inputs], [value.type for value in node.outputs]
