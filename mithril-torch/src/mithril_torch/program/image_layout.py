"""Images with their channels last in memory, from one convolution to the next.

A pass over local graphs. PyTorch's elementwise ops, norms, pools and the like go on in the layout
of what they are given. So values keep their shapes, and only those are laid out anew, once for all
who read them, that come to a convolution as they were written, or to images that are laid out:
inputs, such as images and weights, and what is made of neither. A step gives back weights as it
laid them out, so that the next one finds them so. Other results may be laid back, for those who
look at their strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import Graph, Node, Op, Phase, Types, Value, all_nodes, map_bodies
from mithril.spi.ops import (
    AdamWStep,
    BatchNorm,
    BatchNormGradient,
    Broadcast,
    ChannelGradient,
    ChannelMoments,
    ChannelSums,
    Concatenate,
    Convolving,
    Elementwise,
    GroupNorm,
    GroupNormGradient,
    NormalizeChannels,
    Pad,
    Pooling,
)

IMAGE_RANK = 4
"""Of images in two dimensions, and of the weights that they are convolved with."""
_KEEPS_LAYOUT = (
    BatchNorm, BatchNormGradient, ChannelMoments, ChannelSums, Concatenate, Elementwise, GroupNorm,
    GroupNormGradient, NormalizeChannels, ChannelGradient, Pad, Pooling,
)  # fmt: skip


@dataclass(frozen=True)
class LayOut(Op):
    """An image whose channels lie last in memory, and which is the operand if those of that do.

    It is no op of the core: it exists only while a program is written.
    """

    name: ClassVar[str] = "lay_out"

    def infer(self, inputs: Types) -> Types:
        """Return the type of the image."""
        return inputs[:1]


@dataclass(frozen=True)
class LayBack(Op):
    """A tensor whose elements lie in the order of its dimensions.

    It is no op of the core: it exists only while a program is written.
    """

    name: ClassVar[str] = "lay_back"

    def infer(self, inputs: Types) -> Types:
        """Return the type of the tensor."""
        return inputs[:1]


def lay_out_images(graph: Graph, *, restores: bool = False) -> Graph:
    """Return a graph that computes the same on images with their channels last, in loops too.

    Args:
        graph: a local one.
        restores: whether results, but for what an update makes, lie as if nothing had been done.
    """
    if not any(isinstance(node.op, Convolving) for node in all_nodes(graph)):
        return graph
    layouts = _Layouts()
    for node in graph.nodes:
        layouts.add(node)
    outputs = {name: layouts.find(value) for name, value in graph.outputs.items()}
    if restores:
        outputs = layouts.restore(outputs)
    return Graph(graph.inputs, tuple(layouts.nodes), outputs)


class _Layouts:
    """The new graph while it grows, and which of its values have their channels last."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._now: dict[Value, Value] = {}
        self._laid: set[Value] = set()
        self._spread: set[Value] = set()  # broadcasts, which have no memory of their own

    def find(self, value: Value) -> Value:
        """Return what stands for a value of the old graph."""
        return self._now.get(value, value)

    def add(self, node: Node) -> None:
        """Add a node, its operands laid out where it is one that works on images."""
        node = replace(node, inputs=tuple(map(self.find, node.inputs)))
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
        self.nodes.append(map_bodies(node, lay_out_images))

    def restore(self, outputs: Mapping[str, Value]) -> dict[str, Value]:
        """Return outputs, those of images laid back."""
        makers = {value: node for node in self.nodes for value in node.outputs}
        restored: dict[Value, Value] = {}
        for value in dict.fromkeys(outputs.values()):
            maker = makers.get(value)
            if maker is None or value not in self._laid or maker.phase is Phase.update:
                continue
            restored[value] = made = Value(value.type, value.name)
            node = replace(maker, op=LayBack(), inputs=(value,), outputs=(made,), cause=None)
            self.nodes.append(node)
        return {name: restored.get(value, value) for name, value in outputs.items()}

    def _lay_out_operands(self, node: Node) -> Node:
        wanted = self._list_images(node)
        for value in dict.fromkeys(wanted):
            laid = Value(value.type, value.name)
            self.nodes.append(
                replace(node, op=LayOut(), inputs=(value,), outputs=(laid,), cause=None)
            )
            self._now |= {old: laid for old, now in self._now.items() if now is value}
            self._now[value] = laid
            self._laid.add(laid)
        return replace(node, inputs=tuple(map(self.find, node.inputs)))

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
