"""Writes results into the memory of operands that nobody reads afterwards.

PyTorch takes memory for every result, and pages of a large one are touched for the first time while
it is written. What an addition, a rectifier or its gradient is given last, and what an op before
made anew, is written over instead: residual sums, sums of gradients, rectified norms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import Graph, Node, Op, Types, Value, map_bodies
from mithril.spi.ops import (
    Add,
    AvgPool,
    AvgPoolGradient,
    BatchNorm,
    BatchNormGradient,
    ChannelGradient,
    ChannelMoments,
    ChannelSums,
    Comparison,
    Constant,
    Convolving,
    Divide,
    Gelu,
    GeluGradient,
    Greater,
    GroupNorm,
    GroupNormGradient,
    MaxPool,
    MaxPoolGradient,
    Multiply,
    NormalizeChannels,
    Reduction,
    Relu,
    Silu,
    SiluGradient,
    Subtract,
    Where,
)


@dataclass(frozen=True)
class ReluGradient(Op):
    """The cotangent where what a rectifier has made is above 0, else 0; operands (y, cotangent).

    It is no op of the core: it exists only while a program is written.
    """

    name: ClassVar[str] = "relu_gradient"

    def infer(self, inputs: Types) -> Types:
        """Return the type of the cotangent."""
        return inputs[1:]


@dataclass(frozen=True)
class InPlace(Op):
    """An op whose result is made in the memory of an operand."""

    name: ClassVar[str] = "in_place"
    of: Add | Relu | ReluGradient
    operand: int

    def infer(self, inputs: Types) -> Types:
        """Return the type of the op's result."""
        return self.of.infer(inputs)


_ANEW = (
    Add, AvgPool, AvgPoolGradient, BatchNorm, BatchNormGradient, ChannelMoments, ChannelSums,
    Comparison, Convolving, Divide, Gelu, GeluGradient, GroupNorm, GroupNormGradient, MaxPool,
    MaxPoolGradient, Multiply, NormalizeChannels, ChannelGradient, Relu, ReluGradient, Silu,
    SiluGradient, Subtract, Where,
)  # fmt: skip
"""Ops of floats that return neither an operand nor a view of one, and keep none."""


def join_relu_gradients(graph: Graph) -> Graph:
    """Return a graph in which the choice of a rectifier's gradient is one op, in loops too."""
    makers = graph.producers()
    nodes = (_join(node, makers) for node in graph.nodes)
    joined = tuple(map_bodies(node, join_relu_gradients) for node in nodes)
    needed, kept = set(graph.outputs.values()), []
    for node in reversed(joined):
        if not isinstance(node.op, Greater) or needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return Graph(graph.inputs, tuple(reversed(kept)), graph.outputs)


def _join(node: Node, makers: Mapping[Value, Node]) -> Node:
    if not isinstance(node.op, Where):
        return node
    condition, slope, other = node.inputs
    compared = makers.get(condition)
    if compared is None or not isinstance(compared.op, Greater) or not _is_zero(other, makers):
        return node
    y, least = compared.inputs
    maker = makers.get(y)
    is_rectified = maker is not None and isinstance(maker.op, Relu) and _is_zero(least, makers)
    if not is_rectified or not y.type == slope.type == node.outputs[0].type:
        return node
    return replace(node, op=ReluGradient(), inputs=(y, slope))


def _is_zero(value: Value, makers: Mapping[Value, Node]) -> bool:
    maker = makers.get(value)
    return maker is not None and isinstance(maker.op, Constant) and maker.op.value == 0


def write_in_place(graph: Graph) -> Graph:
    """Return a graph that makes results in the memory of operands where it can, in loops too."""
    makers, readers = graph.producers(), _list_readers(graph)
    outputs, last = set(graph.outputs.values()), graph.last_uses()
    nodes = []
    for node in graph.nodes:
        dying = set(last.get(node, ())) - outputs
        found = [
            operand
            for operand in _list_writable(node)
            if node.inputs[operand] in dying
            and _is_own(node.inputs[operand], makers)
            and all(map(_leaves_alone, readers[node.inputs[operand]]))
        ]
        is_sent = any(reader.op.is_collective for reader in readers.get(node.outputs[0], ()))
        if found and not is_sent:
            assert isinstance(node.op, Add | Relu | ReluGradient), "only these are writable"
            node = replace(node, op=InPlace(node.op, found[0]))
        nodes.append(map_bodies(node, write_in_place))
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _list_readers(graph: Graph) -> dict[Value, list[Node]]:
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    return readers


def _list_writable(node: Node) -> Collection[int]:
    """Return the operands of a node whose memory its result could be made in."""
    is_twice = len(set(node.inputs)) < len(node.inputs)
    if is_twice or not isinstance(node.op, Add | Relu | ReluGradient):
        return ()
    (result,) = node.outputs
    if not result.type.dtype.is_float:
        return ()
    operands = (1,) if isinstance(node.op, ReluGradient) else range(len(node.inputs))
    return [i for i in operands if node.inputs[i].type == result.type]


def _leaves_alone(node: Node) -> bool:
    """Whether what a node makes shares no memory with what it reads."""
    is_total = isinstance(node.op, Reduction) and bool(node.op.axes)
    return is_total or isinstance(node.op, _ANEW)


def _is_own(value: Value, makers: Mapping[Value, Node]) -> bool:
    """Whether the memory of a value was taken for it alone."""
    maker = makers.get(value)
    return maker is not None and isinstance(maker.op, (*_ANEW, InPlace))
