"""Images with their channels last, as MLX convolves them, from one convolution to the next.

A pass over local graphs. A value may be held with its dimensions in another *order*: what is held
is the value transposed by it. Convolutions take and give the order of images; elementwise ops,
reductions, pooling and the like go on in the order that their operands are held in; whatever else
there is gets, and the outputs are, the dimensions as they were written. So a transposition stands
only where an image comes in or goes out, and a value is transposed once for all who ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.spi import (
    Builder,
    Graph,
    Node,
    Op,
    Program,
    Shape,
    Tensor,
    Types,
    Value,
    all_nodes,
    map_bodies,
    ops,
)
from mithril.spi.ops import (
    After,
    AllReduce,
    Broadcast,
    Convolving,
    Elementwise,
    KeepFirst,
    Pooling,
    Reduction,
    Reshape,
    Transpose,
)

Order = tuple[int, ...]


@dataclass(frozen=True)
class OfImages(Op):
    """A convolution or pooling op whose operands and results all have their channels last."""

    name: ClassVar[str] = "of_images"
    of: Op

    def infer(self, inputs: Types) -> Types:
        """Return the types of the op's results, channels last."""
        first = [t.with_shape(channels_second(t.shape)) for t in inputs]
        return [t.with_shape(_permute_shape(t.shape, _image(t.rank))) for t in self.of.infer(first)]


def channels_second(shape: Shape) -> Shape:
    """Return the shape of an image, or a weight, as the core has it.

    >>> channels_second((8, 28, 32, 3))
    (8, 3, 28, 32)
    """
    return (shape[0], shape[-1], *shape[1:-1])


def channels_last(program: Program) -> Program:
    """Return the same program in which images stay in MLX's layout between convolutions."""
    return replace(program, graph=_relayout(program.graph))


def _relayout(graph: Graph) -> Graph:
    if not any(isinstance(node.op, Convolving) for node in all_nodes(graph)):
        return graph
    layouts = _Layouts(graph)
    for node in graph.nodes:
        layouts.add(node)
    return layouts.build(graph)


class _Layouts:
    """The new graph while it grows, and in which orders it holds the values of the old one."""

    def __init__(self, graph: Graph) -> None:
        self._builder = Builder()
        self._held: dict[Value, dict[Order, Tensor]] = {}
        self._fitted: dict[tuple[Value, Order], Tensor] = {}
        self._spread: dict[Value, Node] = {}
        for value in graph.inputs:
            self._hold(value, _plain(value), self._builder.input(value.type, value.name))

    def build(self, graph: Graph) -> Graph:
        """Return the new graph, with the outputs as they were."""
        outputs = {name: self._get(v, _plain(v)) for name, v in graph.outputs.items()}
        return self._builder.build(outputs)

    def add(self, node: Node) -> None:
        """Add what a node computes."""
        methods = (method for kinds, method in _METHODS.items() if isinstance(node.op, kinds))
        with self._builder.at(scope=node.scope, source=node.source, phase=node.phase):
            next(methods, _Layouts._keep)(self, node)

    def _keep(self, node: Node) -> None:
        operands = [self._get(value, _plain(value)) for value in node.inputs]
        results = self._builder.copy(map_bodies(node, _relayout), operands)
        for value, result in zip(node.outputs, results, strict=True):
            self._hold(value, _plain(value), result)

    def _convolution(self, node: Node) -> None:
        order = _image(node.outputs[0].type.rank)
        self._apply(node, OfImages(node.op), order)

    def _pooling(self, node: Node) -> None:
        if self._other_order(node.inputs) is None:
            self._keep(node)
        else:
            self._convolution(node)

    def _elementwise(self, node: Node) -> None:
        rank = node.outputs[0].type.rank
        order = self._other_order([value for value in node.inputs if value.type.rank == rank])
        if order is None:
            self._keep(node)
        else:
            self._apply(node, node.op, order)

    def _moving(self, node: Node) -> None:
        """Add an op with a number for every dimension, or the numbers of some dimensions."""
        order, op = self._other_order(node.inputs), node.op
        if order is None:
            self._keep(node)
        elif isinstance(op, ops.Concatenate):
            self._apply(node, replace(op, axis=order.index(op.axis)), order)
        elif isinstance(op, ops.Flip):
            self._apply(node, replace(op, axes=tuple(map(order.index, op.axes))), order)
        else:
            widths: Mapping[str, Any] = op.attributes
            moved = {name: _permute_shape(each, order) for name, each in widths.items()}
            self._apply(node, replace(op, **moved), order)

    def _reduction(self, node: Node) -> None:
        order, op = self._other_order(node.inputs), node.op
        if order is None:
            self._keep(node)
            return
        assert isinstance(op, Reduction), "it is called for reductions"
        axes = tuple(sorted(map(order.index, op.axes)))
        left = order if op.keepdims else tuple(d for d in order if d not in op.axes)
        names = sorted(left)
        operand = self._get(node.inputs[0], order)
        (result,) = self._builder.copy(replace(node, op=replace(op, axes=axes)), [operand])
        self._hold(node.outputs[0], tuple(map(names.index, left)), result)

    def _transposition(self, node: Node) -> None:
        """Add nothing: the operand as it is held is the result in some other order."""
        order, op = self._other_order(node.inputs), node.op
        if order is None:
            self._keep(node)
            return
        assert isinstance(op, Transpose), "it is called for transpositions"
        held = self._get(node.inputs[0], order)
        self._hold(node.outputs[0], tuple(map(op.order.index, order)), held)

    def _reshape(self, node: Node) -> None:
        (value,), order = node.inputs, self._other_order(node.inputs)
        if order is None or not _is_same_memory(value.type.shape, order):
            self._keep(node)
            return
        (result,) = self._builder.copy(node, [self._get(value, order)])
        self._hold(node.outputs[0], _plain(node.outputs[0]), result)

    def _broadcast(self, node: Node) -> None:
        """Put it off until somebody says in which order it is needed."""
        self._spread[node.outputs[0]] = node
        self._held[node.outputs[0]] = {}

    def _passing(self, node: Node) -> None:
        """Add an op that does not look at the shape of its first operand."""
        first, second = node.inputs
        order = self._other_order([first]) or _plain(first)
        operands = [self._get(first, order), self._get(second, _plain(second))]
        (result,) = self._builder.copy(node, operands)
        self._hold(node.outputs[0], order, result)

    def _bucket(self, node: Node) -> None:
        """Add a collective that does not look at the shapes of its operands."""
        orders = [self._other_order([value]) or _plain(value) for value in node.inputs]
        operands = [self._get(v, order) for v, order in zip(node.inputs, orders, strict=True)]
        results = self._builder.copy(node, operands)
        for value, order, result in zip(node.outputs, orders, results, strict=True):
            self._hold(value, order, result)

    # ---------------------------------------------------------------- how values are held

    def _apply(self, node: Node, op: Op, order: Order) -> None:
        """Add an op on operands in an order, which is that of its results."""
        operands = [self._fit(value, order) for value in node.inputs]
        results = self._builder.copy(replace(node, op=op), operands)
        for value, result in zip(node.outputs, results, strict=True):
            self._hold(value, order, result)

    def _hold(self, value: Value, order: Order, tensor: Tensor) -> None:
        self._held.setdefault(value, {})[order] = tensor

    def _other_order(self, values: Sequence[Value]) -> Order | None:
        """Return the order of the first value that is not held as it was written."""
        for value in values:
            held = self._held[value]
            if value not in self._spread and _plain(value) not in held:
                return next(iter(held))
        return None

    def _get(self, value: Value, order: Order) -> Tensor:
        """Return a value in an order of its dimensions; it is brought into it once."""
        held = self._held[value]
        if order not in held:
            spread = self._spread.get(value)
            held[order] = (
                self._convert(value, order) if spread is None else self._wide(spread, order)
            )
        return held[order]

    def _convert(self, value: Value, order: Order) -> Tensor:
        now, tensor = next(iter(self._held[value].items()))
        steps = tuple(map(now.index, order))
        if _is_same_memory(tensor.shape, steps):
            return self._one(Reshape(_permute_shape(tensor.shape, steps)), tensor)
        return self._one(Transpose(steps), tensor)

    def _wide(self, node: Node, order: Order) -> Tensor:
        """Return what a broadcast gives, in an order."""
        (value,), shape = node.inputs, _permute_shape(node.outputs[0].type.shape, order)
        is_plain = order == _plain(node.outputs[0])
        operand = self._get(value, _plain(value)) if is_plain else self._fit(value, order)
        return self._builder.copy(replace(node, op=Broadcast(shape)), [operand])[0]

    def _fit(self, value: Value, order: Order) -> Tensor:
        """Return an operand of an op on values in an order; it may lack leading dimensions."""
        rank = value.type.rank
        if rank in (0, len(order)):
            return self._get(value, order[:rank])
        if (value, order) not in self._fitted:
            tensor = self._get(value, _plain(value))
            shape = (1,) * (len(order) - rank) + tensor.shape
            if _is_same_memory(shape, order):
                found = self._one(Reshape(_permute_shape(shape, order)), tensor)
            else:
                found = self._one(Transpose(order), self._one(Reshape(shape), tensor))
            self._fitted[value, order] = found
        return self._fitted[value, order]

    def _one(self, op: Op, operand: Tensor) -> Tensor:
        return self._builder.apply(op, operand)[0]


_METHODS: dict[tuple[type[Op], ...], Callable[[_Layouts, Node], None]] = {
    (Convolving,): _Layouts._convolution,
    (Pooling,): _Layouts._pooling,
    (Elementwise,): _Layouts._elementwise,
    (Reduction,): _Layouts._reduction,
    (ops.Concatenate, ops.Flip, ops.Slice, ops.Pad): _Layouts._moving,
    (Transpose,): _Layouts._transposition,
    (Reshape,): _Layouts._reshape,
    (Broadcast,): _Layouts._broadcast,
    (After, KeepFirst): _Layouts._passing,
    (AllReduce,): _Layouts._bucket,
}  # fmt: skip


def _plain(value: Value) -> Order:
    """Return the order in which the dimensions were written."""
    return tuple(range(value.type.rank))


def _image(rank: int) -> Order:
    """Return the order in which the second of some dimensions is the last."""
    return (0, *range(2, rank), 1)


def _permute_shape(shape: Shape, order: Order) -> Shape:
    return tuple(shape[i] for i in order)


def _is_same_memory(shape: Shape, order: Order) -> bool:
    """Whether the dimensions larger than 1 stay in their order, so that no element moves."""
    large = [i for i in order if shape[i] > 1]
    return large == sorted(large)
