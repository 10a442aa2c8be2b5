"""Mixed precision: casts put into a graph so that each op computes in the dtype a policy gives it.

The graph comes traced in the activation dtype, with one cast behind every parameter of the policy.
That cast is put off while a parameter is only moved (transposed, reshaped, looked up in), so that
what is contracted reaches the compute dtype without being rounded on the way. The pass runs before
differentiation: backward computations follow from the casts, and gradients arrive in the dtype of
their parameters. Ops are told apart by their rules and costs, not by their names.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import replace

from mithril.ir import Builder, Checkpoint, Graph, Node, Op, Repeat, Tensor, Types, Value
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
    mixer = _Mixer(graph, precision)
    for value in graph.inputs:
        tensor = mixer.builder.input(value.type, value.name)
        mixer.made[value] = tensor
        if value.name in parameters:
            mixer.parameters.add(value)
    mixer.visit_all()
    outputs = {name: mixer.unrounded(value) for name, value in graph.outputs.items()}
    return mixer.builder.build(outputs)


class _Mixer:
    """One run over a graph, from first node to last.

    `made` has the new tensor of an old value in its old type, `raw` that of a parameter, or of a
    part of one, before its cast to the activation dtype.
    """

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self.graph = graph
        self.builder = Builder()
        self.made: dict[Value, Tensor] = {}
        self.raw: dict[Value, Tensor] = {}
        self.parameters: set[Value] = set()
        self._precision = precision
        self._producers = graph.producers()
        self._casts: dict[tuple[Value, DType], Tensor] = {}

    def visit_all(self) -> None:
        """Copy every node, with casts around it."""
        for node in self.graph.nodes:
            with self.builder.at(scope=node.scope, source=node.source, phase=node.phase):
                self._visit(node)

    def tensor(self, value: Value) -> Tensor:
        """Return the new tensor of an old value, in its old type."""
        if value not in self.made:
            self.made[value] = self._cast(self.raw[value], value.type.dtype)
            self.builder.named(self.made[value], value.name)
        return self.made[value]

    def unrounded(self, value: Value) -> Tensor:
        """Return an output; a scalar, such as a loss, as it was before it was rounded."""
        node = self._producers.get(value)
        if node is None or not isinstance(node.op, Cast) or value.type.rank:
            return self.tensor(value)
        wide = node.inputs[0].type.dtype
        rounds = wide.is_float and wide.itemsize > value.type.dtype.itemsize
        if not rounds or value.type.dtype != self._precision.activations:
            return self.tensor(value)
        return self.builder.named(self.tensor(node.inputs[0]), value.name)

    def _visit(self, node: Node) -> None:
        if isinstance(node.op, Repeat | Checkpoint):
            self._finish(node, self._inside(node, node.op))
        elif isinstance(node.op, Cast) and self._is_kept(node.inputs[0]):
            self._cast_parameter(node, node.op)
        elif self._only_moves(node):
            (moved,) = self.builder.apply(node.op, *map(self._source, node.inputs))
            self._put_off(node.outputs[0], moved)
        elif self._contracts(node):
            results = self.builder.apply(node.op, *map(self._operand, node.inputs))
            self._finish(node, results)
        else:
            results = self.builder.copy(node, [self.tensor(value) for value in node.inputs])
            self.made.update(zip(node.outputs, results, strict=True))

    def _finish(self, node: Node, results: Collection[Tensor]) -> None:
        for old, new in zip(node.outputs, results, strict=True):
            same = cast(new, old.type.dtype) if old.type.dtype.is_float else new
            self.made[old] = self.builder.named(same, old.name)

    def _is_kept(self, value: Value) -> bool:
        return value in self.raw or value in self.parameters

    def _cast_parameter(self, node: Node, op: Cast) -> None:
        value, result = node.inputs[0], node.outputs[0]
        source = self._source(value)
        if op.dtype == self._precision.activations:
            self._put_off(result, source)
        else:
            self.made[result] = self.builder.named(self._cast(source, op.dtype), result.name)

    def _put_off(self, value: Value, raw: Tensor) -> None:
        """Remember a value before its cast; one with a name passes between layers: cast."""
        if value.name:
            self.made[value] = self.builder.named(self._cast(raw, value.type.dtype), value.name)
        else:
            self.raw[value] = raw

    def _only_moves(self, node: Node) -> bool:
        floats = [value for value in node.inputs if value.type.dtype.is_float]
        if len(floats) != 1 or floats[0] not in self.raw or len(node.outputs) != 1:
            return False
        return node.op.cost(*_types(node)).flops == 0

    def _contracts(self, node: Node) -> bool:
        """Whether the policy has the node compute in the compute dtype."""
        floats = {value.type.dtype for value in node.inputs if value.type.dtype.is_float}
        mixed = self._precision.compute != self._precision.activations
        return (
            mixed and floats == {self._precision.activations} and contracts(node.op, *_types(node))
        )

    def _operand(self, value: Value) -> Tensor:
        if not value.type.dtype.is_float:
            return self.made[value]
        return self._cast(self._source(value), self._precision.compute)

    def _source(self, value: Value) -> Tensor:
        return self.raw[value] if value in self.raw else self.made[value]

    def _cast(self, tensor: Tensor, dtype: DType) -> Tensor:
        key = (tensor.value, dtype)
        if key not in self._casts:
            self._casts[key] = cast(tensor, dtype)
        return self._casts[key]

    def _inside(self, node: Node, op: Repeat | Checkpoint) -> tuple[Tensor, ...]:
        """Mix the body; what is no carry may be a parameter before its cast."""
        carried = op.carried if isinstance(op, Repeat) else 0
        inner = _Mixer(op.body, self._precision)
        operands = []
        for position, (outer, value) in enumerate(zip(node.inputs, op.body.inputs, strict=True)):
            raw = self.raw.get(outer) if position >= carried else None
            operands.append(self.tensor(outer) if raw is None else raw)
            dtype = operands[-1].dtype
            tensor = inner.builder.input(TensorType(value.type.shape, dtype), value.name)
            (inner.made if raw is None else inner.raw)[value] = tensor
            if outer in self.parameters:
                inner.parameters.add(value)
        inner.visit_all()
        outputs = {name: inner.tensor(value) for name, value in op.body.outputs.items()}
        body = replace(op, body=inner.builder.build(outputs))
        return self.builder.apply(body, *operands)


def contracts(op: Op, inputs: Types, outputs: Types) -> bool:
    """Return whether an op is linear algebra: sums over a factor that two float operands share."""
    floats = [position for position, t in enumerate(inputs) if t.dtype.is_float]
    if len(floats) < 2:
        return False
    rule = op.rule(inputs, outputs)
    kept = {factor for dims in rule.results for dim in dims for factor in dim}
    held = [{factor for dim in rule.operands[i] for factor in dim} - kept for i in floats]
    return any(a & b for i, a in enumerate(held) for b in held[:i])


def _types(node: Node) -> tuple[Types, Types]:
    return [value.type for value in node.inputs], [value.type for value in node.outputs]
