"""Images with their channels last, from one convolution to the next.

A pass over local graphs, for backends whose convolutions take images so. A value may be held with
its dimensions in another *order*: what is held is the value transposed by it. Convolutions take and
give the order of images; elementwise ops, reductions, pooling, norms of channels and the like go on
in the order that their operands are held in; whatever else there is gets, and the outputs are, the
dimensions as they were written. So a transposition stands only where an image comes in or goes out,
and a value is transposed once for all who ask. What has the same elements behind one another in
both orders, as an image of one channel, counts as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from mithril.ir import Builder, Graph, Node, Op, Tensor, Value
from mithril.ir.op import Tensors, Types
from mithril.ir.rewrite import all_nodes, map_bodies, rewrite
from mithril.ops.batch_norm import (
    BatchNorm,
    BatchNormGradient,
    ChannelGradient,
    ChannelMoments,
    ChannelSums,
    NormalizeChannels,
)
from mithril.ops.collective import AllReduce, KeepFirst
from mithril.ops.control import After
from mithril.ops.conv import Convolving
from mithril.ops.elementwise import Elementwise
from mithril.ops.group_norm import GroupNorm, GroupNormGradient
from mithril.ops.order import Flip
from mithril.ops.pool import Pooling
from mithril.ops.reduce import Reduction
from mithril.ops.shape import Broadcast, Concatenate, Reshape, Transpose
from mithril.ops.slicing import Pad, Slice
from mithril.types import Shape

Order = tuple[int, ...]

NORMS = (
    BatchNorm, BatchNormGradient, ChannelGradient, ChannelMoments, ChannelSums,
    GroupNorm, GroupNormGradient,
)  # fmt: skip
"""What is taken apart before images are laid out: its pieces go on in any order."""


@dataclass(frozen=True)
class OfImages(Op):
    """An op on images whose operands and results all have their channels last.

    Operands of one dimension, a number for each channel, stay as they are.
    """

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
    return shape if len(shape) < 2 else (shape[0], shape[-1], *shape[1:-1])


def lay_channels_last(graph: Graph, kernels: Container[str]) -> Graph:
    """Return a graph that computes the same, with images held channels last.

    Convolutions and pooling, and `normalize_channels` where there is a kernel for it, become
    `OfImages`. A graph without convolutions stays as it is.

    Args:
        graph: a local one.
        kernels: the names of ops that the backend has kernels for; that of `normalize_channels`, if
            there is one, takes images so, too.
    """
    if not any(isinstance(node.op, Convolving) for node in all_nodes(graph)):
        return graph
    has_kernel = NormalizeChannels.name in kernels
    return _lay_out(_expand(graph, NORMS if has_kernel else (*NORMS, NormalizeChannels)))


def _expand(graph: Graph, kinds: tuple[type[Op], ...]) -> Graph:
    """Return a graph in which there are only the pieces of some ops."""

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return node.op.expand(operands) if isinstance(node.op, kinds) else None

    while any(isinstance(node.op, kinds) for node in all_nodes(graph)):
        graph = rewrite(graph, visit)
    return graph


def _lay_out(graph: Graph) -> Graph:
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
        makers, outputs = graph.producers(), {}
        for name, value in graph.outputs.items():
            with self._at(makers.get(value)):
                outputs[name] = self._get(value, _plain(value))
        return self._builder.build(outputs)

    def add(self, node: Node) -> None:
        """Add what a node computes."""
        methods = (method for kinds, method in _METHODS.items() if isinstance(node.op, kinds))
        with self._at(node):
            next(methods, _Layouts._keep)(self, node)

    def _at(self, node: Node | None) -> AbstractContextManager[object]:
        """Have what is added stand where a node does."""
        if node is None:
            return nullcontext()
        return self._builder.at(scope=node.scope, source=node.source, phase=node.phase)

    def _keep(self, node: Node) -> None:
        operands = [self._get(value, _plain(value)) for value in node.inputs]
        results = self._builder.copy(map_bodies(node, _lay_out), operands)
        for value, result in zip(node.outputs, results, strict=True):
            self._hold(value, _plain(value), result)

    def _convolution(self, node: Node) -> None:
        order = _image(node.outputs[0].type.rank)
        self._apply(node, OfImages(node.op), order)

    def _channelwise(self, node: Node) -> None:
        """Add an op on an image and numbers for its channels."""
        image, *rows = node.inputs
        order = _image(image.type.rank)
        if self._other_order([image]) != order:
            self._keep(node)
            return
        operands = [self._get(image, order), *(self._get(row, _plain(row)) for row in rows)]
        (result,) = self._builder.copy(replace(node, op=OfImages(node.op)), operands)
        self._hold(node.outputs[0], order, result)

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
        elif isinstance(op, Concatenate):
            self._apply(node, replace(op, axis=order.index(op.axis)), order)
        elif isinstance(op, Flip):
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
        """Add a reshape that takes dimensions apart, or puts some together, where they stand."""
        (value,), shape = node.inputs, node.outputs[0].type.shape
        order = self._other_order([value])
        new = None if order is None else _order_reshaped(value.type.shape, shape, order)
        if order is None or new is None:
            self._keep(node)
            return
        op = Reshape(_permute_shape(shape, new))
        (result,) = self._builder.copy(replace(node, op=op), [self._get(value, order)])
        self._hold(node.outputs[0], new, result)

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
                order = next(iter(held))
                if not _is_same_memory(value.type.shape, order):
                    return order
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
    (NormalizeChannels,): _Layouts._channelwise,
    (Elementwise,): _Layouts._elementwise,
    (Reduction,): _Layouts._reduction,
    (Concatenate, Flip, Slice, Pad): _Layouts._moving,
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
    return (0, *range(2, rank), 1) if rank > 1 else (0,) * rank


def _permute_shape(shape: Shape, order: Order) -> Shape:
    return tuple(shape[i] for i in order)


def _is_same_memory(shape: Shape, order: Order) -> bool:
    """Whether the dimensions larger than 1 stay in their order, so that no element moves."""
    large = [i for i in order if shape[i] > 1]
    return large == sorted(large)


def _order_reshaped(before: Shape, after: Shape, order: Order) -> Order | None:
    """Return the order of what a reshape makes of dimensions in an order.

    None if it puts dimensions together that do not stand behind one another, or nothing is there.
    """
    if not prod(before):
        return None
    made: list[int] = []
    groups = {tuple(old): new for old, new in _pair_dimensions(before, after)}
    position = 0
    while position < len(order):
        group = next((old for old in groups if old and old[0] == order[position]), ())
        if not group or order[position : position + len(group)] != group:
            return None
        made += groups[group]
        position += len(group)
    return tuple(made)


def _pair_dimensions(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest groups of dimensions that a reshape makes of one another.

    >>> list(_pair_dimensions((2, 12, 5), (2, 3, 4, 5)))
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    old, new = list(range(len(before))), list(range(len(after)))
    while old or new:
        left, right = old[:1], new[:1]
        del old[:1], new[:1]
        while (a := prod(before[i] for i in left)) != (b := prod(after[i] for i in right)):
            short, rest = (left, old) if a < b else (right, new)
            short.append(rest.pop(0))
        if not old or not new:  # dimensions of one element that are left
            left, right, old, new = left + old, right + new, [], []
        yield left, right
