"""Images with their channels last in memory, from one convolution to the next.

A pass over local graphs. PyTorch's elementwise ops, norms, pools and the like go on in the layout
of what they are given. So values keep their shapes, and only those are laid out anew, once for all
who read them, that come to a convolution as they were written, or to images that are laid out:
inputs, such as images and weights, and what is made of neither. A step gives back weights as it
laid them out, so that the next one finds them so. Other results may be put in order again, for
those who look at their strides. What processes exchange of images and weights lies in their buffers
as it does in memory: collectives work on rows, whatever their order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import Graph, Node, Phase, TensorType, Types, Value, all_nodes, map_bodies
from mithril.spi.ops import (
    AdamWStep,
    AllGather,
    AllReduce,
    BatchNorm,
    BatchNormGradient,
    Broadcast,
    Cast,
    ChannelGradient,
    ChannelMoments,
    ChannelSums,
    Concatenate,
    Convolving,
    Einsum,
    Elementwise,
    GroupNorm,
    GroupNormGradient,
    NormalizeChannels,
    Pad,
    Pooling,
    ReduceScatter,
    Start,
    Transpose,
    Wait,
    collective_of,
)

from mithril_torch.program.written_op import WrittenOp

IMAGE_RANK = 4
"""Of images in two dimensions, and of the weights that they are convolved with."""
LARGEST_FILTER = 16
"""Rows and columns of filters; of more, there are images, or rows of a batch."""
TO_LAST, TO_SECOND = (0, 2, 3, 1), (0, 3, 1, 2)
"""Orders of dimensions that bring the channels to the end, and back."""
_KEEPS_LAYOUT = (
    BatchNorm, BatchNormGradient, ChannelMoments, ChannelSums, Concatenate, Elementwise, GroupNorm,
    GroupNormGradient, NormalizeChannels, ChannelGradient, Pad, Pooling,
)  # fmt: skip


@dataclass(frozen=True)
class ToChannelsLast(WrittenOp):
    """An image whose channels lie last in memory, and which is the operand if those of that do."""

    name: ClassVar[str] = "to_channels_last"

    def infer(self, inputs: Types) -> Types:
        """Return the type of the image."""
        return inputs[:1]


@dataclass(frozen=True)
class AsChannelsLast(WrittenOp):
    """A view of an image of one channel, or one pixel, whose strides say that channels lie last.

    By strides PyTorch tells how what is convolved with it shall lie, where filters have one pixel.
    """

    name: ClassVar[str] = "as_channels_last"

    def infer(self, inputs: Types) -> Types:
        """Return the type of the image."""
        return inputs[:1]


@dataclass(frozen=True)
class ToContiguous(WrittenOp):
    """A tensor whose elements lie in the order of its dimensions: the operand if its own do."""

    name: ClassVar[str] = "to_contiguous"

    def infer(self, inputs: Types) -> Types:
        """Return the type of the tensor."""
        return inputs[:1]


def lay_out_images(
    graph: Graph, *, contiguous_results: bool = False, donated: Collection[Value] = ()
) -> Graph:
    """Return a graph that computes the same on images with their channels last, in loops too.

    Args:
        graph: a local one.
        contiguous_results: whether results lie as if nothing had been done, but for what an update
            makes, and what takes the place of a donated input.
        donated: inputs that are given up.
    """
    if not any(isinstance(node.op, Convolving) for node in all_nodes(graph)):
        return graph
    layouts = _Layouts(find_convolved(graph))
    for node in graph.nodes:
        layouts.add(node)
    layouts.add_views(graph.outputs.values())
    outputs = {name: layouts.find(value) for name, value in graph.outputs.items()}
    if contiguous_results:
        outputs = layouts.restore(graph, donated)
    return Graph(graph.inputs, tuple(layouts.nodes), outputs)


def find_convolved(graph: Graph) -> set[Value]:
    """Return what convolutions read, in loops too, and what is gathered or cast to be read so."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        is_form = collective_of(node.op) is not None or isinstance(node.op, Cast | Wait)
        if isinstance(node.op, Convolving):
            found.update(node.inputs)
        elif is_form:
            pairs = zip(node.inputs, node.outputs, strict=True)
            found.update(value for value, made in pairs if made in found)
        for body in node.op.bodies:
            inside = find_convolved(body)
            pairs = zip(node.inputs, body.inputs, strict=True)
            found.update(value for value, own in pairs if own in inside and own.type == value.type)
    return found


def is_filter(type: TensorType) -> bool:
    """Return whether a tensor may be the weights that images are convolved with.

    >>> from mithril.spi import DType
    >>> is_filter(TensorType((64, 32, 3, 3), DType.float32))
    True
    """
    is_small = type.rank == IMAGE_RANK and max(type.shape[2:]) <= LARGEST_FILTER
    return is_small and type.dtype.is_float


def _has_orders(type: TensorType) -> bool:
    """Return whether it matters to memory where the channels of an image or filter are."""
    return type.rank == IMAGE_RANK and type.shape[1] > 1 and math.prod(type.shape[2:]) > 1


def _turn(value: Value, order: Sequence[int]) -> Value:
    """Return a value like another one with its dimensions in another order."""
    return Value(value.type.with_shape(tuple(value.type.shape[i] for i in order)), value.name)


def _view(like: Node, value: Value, turned: Value, order: tuple[int, ...]) -> Node:
    """Return the node that makes a view with the dimensions in another order."""
    return replace(like, op=Transpose(order), inputs=(value,), outputs=(turned,), cause=None)


class _Layouts:
    """The new graph while it grows, and which of its values have their channels last.

    Args:
        convolved: what convolutions read, collectives between included.
    """

    def __init__(self, convolved: set[Value]) -> None:
        self.nodes: list[Node] = []
        self._convolved = convolved
        self._now: dict[Value, Value] = {}
        self._laid: set[Value] = set()
        self._touched: set[Value] = set()  # made of images that are laid out: they may lie so, too
        self._spread: set[Value] = set()  # broadcasts, which have no memory of their own
        self._pending: dict[Value, Value] = {}  # as starts had them, and as they have them now
        self._exchanged: dict[Value, Node] = {}  # the views of what collectives made of images

    def find(self, value: Value) -> Value:
        """Return what stands for a value of the old graph."""
        return self._now.get(value, value)

    def add(self, node: Node) -> None:
        """Add a node, its operands laid out where it is one that works on images."""
        self.add_views(node.inputs)
        node = replace(node, inputs=tuple(map(self.find, node.inputs)))
        turned = self._list_exchanged(node)
        if turned:
            self._add_exchange(node, turned)
            return
        is_of_images = isinstance(node.op, Convolving)
        if not is_of_images and isinstance(node.op, _KEEPS_LAYOUT):
            is_of_images = any(value in self._laid for value in node.inputs)
        if is_of_images:
            node = self._lay_out_operands(node)
            self._laid.update(value for value in node.outputs if value.type.rank == IMAGE_RANK)
        elif isinstance(node.op, AdamWStep) and node.inputs[0] in self._laid:
            self._laid.add(node.outputs[0])
        elif isinstance(node.op, Broadcast):
            self._spread.update(node.outputs)
        self._touched.update(self._list_touched(node))
        self.nodes.append(map_bodies(node, lay_out_images))

    def _list_exchanged(self, node: Node) -> list[int]:
        """Return which operands of a collective, or of a wait, have their channels last."""
        if isinstance(node.op, Wait):
            return [i for i, value in enumerate(node.inputs) if value in self._pending]
        op = collective_of(node.op)
        is_along_rows = isinstance(op, AllGather | ReduceScatter) and op.dimension == 0
        if not is_along_rows and not isinstance(op, AllReduce):
            return []
        return [
            i
            for i, value in enumerate(node.inputs)
            if value in self._laid or value in self._convolved
            if _has_orders(value.type)
        ]

    def _add_exchange(self, node: Node, turned: Collection[int]) -> None:
        """Add a collective, or the wait for one, some of whose operands have their channels last.

        It sees them with these as the last dimension, in views, and so does the wait for it.
        """
        is_wait, inputs, outputs = isinstance(node.op, Wait), [*node.inputs], [*node.outputs]
        for i in turned:
            old = inputs[i]
            inputs[i] = self._pending[old] if is_wait else _turn(old, TO_LAST)
            if not is_wait:
                self.nodes.append(_view(node, old, inputs[i], TO_LAST))
            outputs[i] = _turn(outputs[i], TO_LAST)
        self.nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs)))
        for i in turned:
            if isinstance(node.op, Start):
                self._pending[node.outputs[i]] = outputs[i]
                continue
            made = node.outputs[i]
            self._exchanged[made] = _view(node, outputs[i], made, TO_SECOND)
            self._laid.add(made)
            self._touched.add(made)

    def add_views(self, values: Iterable[Value]) -> None:
        """Add the views that are what was exchanged, where somebody reads it.

        Who reads the result of a collective waits for it: nobody shall before that.
        """
        for value in values:
            if value in self._exchanged:
                self.nodes.append(self._exchanged.pop(value))

    def restore(self, graph: Graph, donated: Collection[Value]) -> dict[str, Value]:
        """Return the outputs of the old graph as if nothing had been laid out.

        What is laid out of donated inputs comes in again with the next call, if the results that
        take their places stay so; that is told by shapes, as those of moments are.
        """
        makers = {value: node for node in self.nodes for value in node.outputs}
        kept = {value.type.shape for value in donated if value in self._now}
        restored: dict[Value, Value] = {}
        for value in dict.fromkeys(graph.outputs.values()):
            maker = makers.get(value)
            is_update = maker is not None and maker.phase is Phase.update
            if is_update or value.type.shape in kept:
                restored[value] = self.find(value)
            elif maker is not None and value in self._touched:
                restored[value] = made = Value(value.type, value.name)
                laid = (self.find(value),)
                self.nodes.append(
                    replace(maker, op=ToContiguous(), inputs=laid, outputs=(made,), cause=None)
                )
        return {name: restored.get(value, value) for name, value in graph.outputs.items()}

    def _list_touched(self, node: Node) -> list[Value]:
        """Return what a node makes that may lie otherwise than it would of operands in order.

        Products and collectives make results in an order of their own, as do stacks of loops; of
        one dimension there is no other.
        """
        if isinstance(node.op, Einsum) or collective_of(node.op) is not None:
            return []
        is_touched = any(value in self._laid or value in self._touched for value in node.inputs)
        made: Sequence[Value] = node.outputs
        if node.op.bodies:
            made = made[: len(node.op.carries)]
            is_touched |= any(isinstance(inner.op, Convolving) for inner in all_nodes(node))
        return [value for value in made if is_touched and value.type.rank > 1]

    def _lay_out_operands(self, node: Node) -> Node:
        wanted = self._list_images(node)
        for value in dict.fromkeys(wanted):
            laid = Value(value.type, value.name)
            self.nodes.append(
                replace(node, op=ToChannelsLast(), inputs=(value,), outputs=(laid,), cause=None)
            )
            self._now |= {old: laid for old, now in self._now.items() if now is value}
            self._now[value] = laid
            self._laid.add(laid)
        node = replace(node, inputs=tuple(map(self.find, node.inputs)))
        image = node.inputs[0]
        has_orders = any(_has_orders(value.type) for value in node.inputs)
        if has_orders or image.type.rank != IMAGE_RANK or not isinstance(node.op, Convolving):
            return node
        told = Value(image.type, image.name)
        self.nodes.append(
            replace(node, op=AsChannelsLast(), inputs=(image,), outputs=(told,), cause=None)
        )
        return replace(node, inputs=(told, *node.inputs[1:]))

    def _list_images(self, node: Node) -> Sequence[Value]:
        """Return the operands of a node that are images and not known to be laid out."""
        is_convolution = isinstance(node.op, Convolving)
        shape = node.outputs[0].type.shape
        return [
            value
            for value in node.inputs
            if value.type.rank == IMAGE_RANK
            and value not in self._laid
            and value not in self._spread
            and (is_convolution or value.type.shape == shape)
        ]
