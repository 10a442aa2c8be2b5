"""Writes results into the memory of operands that nobody reads afterwards.

PyTorch takes memory for every result, and what is large is read from slow memory before it is
written. What an op of `WRITABLE` is given last, and what an op before made anew, is written over
instead: residual sums, sums and products of gradients, rectified norms, logits. Products of
matrices are added there by the function that multiplies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    CrossEntropy,
    CrossEntropyGradient,
    Divide,
    Einsum,
    Gelu,
    GeluGradient,
    Greater,
    GroupNorm,
    GroupNormGradient,
    LayerNorm,
    LayerNormGradient,
    MaxPool,
    MaxPoolGradient,
    Multiply,
    NormalizeChannels,
    Reduction,
    Relu,
    Reshape,
    RmsNorm,
    RmsNormGradient,
    Silu,
    SiluGradient,
    Subtract,
    Where,
)

from mithril_torch.program.fusing import EinsumAdd, EinsumInto
from mithril_torch.program.written_op import WrittenOp


@dataclass(frozen=True)
class ReluGradient(WrittenOp):
    """The cotangent where what a rectifier has made is above 0, else 0; operands (y, cotangent)."""

    name: ClassVar[str] = "relu_gradient"

    def infer(self, inputs: Types) -> Types:
        """Return the type of the cotangent."""
        return inputs[1:]


@dataclass(frozen=True)
class InPlace(WrittenOp):
    """An op whose result is made in the memory of an operand."""

    name: ClassVar[str] = "in_place"
    of: Op
    operand: int

    def infer(self, inputs: Types) -> Types:
        """Return the type of the op's result."""
        return self.of.infer(inputs)


_ANEW = (
    Add, AvgPool, AvgPoolGradient, BatchNorm, BatchNormGradient, ChannelMoments, ChannelSums,
    Comparison, Convolving, CrossEntropy, CrossEntropyGradient, Divide, Einsum, EinsumAdd,
    EinsumInto, Gelu, GeluGradient, GroupNorm, GroupNormGradient, LayerNorm, LayerNormGradient,
    MaxPool, MaxPoolGradient, Multiply, NormalizeChannels, ChannelGradient, Relu, ReluGradient,
    RmsNorm, RmsNormGradient, Silu, SiluGradient, Subtract, Where,
)  # fmt: skip
"""Ops of floats that return neither an operand nor a view of one, and keep none."""

WRITABLE: Mapping[type[Op], tuple[int, ...]] = {
    Add: (0, 1), CrossEntropyGradient: (0,), EinsumAdd: (2,), GeluGradient: (1,), Multiply: (0, 1),
    Relu: (0,), ReluGradient: (1,), SiluGradient: (1,),
}  # fmt: skip
"""Ops whose result can be made in the memory of an operand: of which ones."""


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
            and _is_own(node.inputs[operand], makers, readers, outputs)
            and all(map(_leaves_alone, readers[node.inputs[operand]]))
        ]
        is_sent = any(reader.op.is_collective for reader in readers.get(node.outputs[0], ()))
        if found and not is_sent:
            node = replace(node, op=_write_over(node.op, found[0]))
        nodes.append(map_bodies(node, write_in_place))
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _write_over(op: Op, operand: int) -> Op:
    """Return what makes the result of an op in the memory of an operand."""
    return EinsumInto(op.equation) if isinstance(op, EinsumAdd) else InPlace(op, operand)


def _list_readers(graph: Graph) -> dict[Value, list[Node]]:
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    return readers


def _list_writable(node: Node) -> Collection[int]:
    """Return the operands of a node whose memory its result could be made in."""
    is_twice = len(set(node.inputs)) < len(node.inputs)
    operands = WRITABLE.get(type(node.op), ())
    if is_twice or not operands or not node.outputs[0].type.dtype.is_float:
        return ()
    return [i for i in operands if node.inputs[i].type == node.outputs[0].type]


def _leaves_alone(node: Node) -> bool:
    """Whether what a node makes shares no memory with what it reads."""
    is_total = isinstance(node.op, Reduction) and bool(node.op.axes)
    return is_total or isinstance(node.op, _ANEW)


def _is_own(
    value: Value,
    makers: Mapping[Value, Node],
    readers: Mapping[Value, Sequence[Node]],
    outputs: Collection[Value],
) -> bool:
    """Whether the memory of a value was taken for it alone, or for what it is another shape of."""
    maker = makers.get(value)
    if maker is None or not isinstance(maker.op, Reshape):
        return maker is not None and isinstance(maker.op, (*_ANEW, InPlace))
    (source,) = maker.inputs
    is_only = len(readers[source]) == 1 and source not in outputs
    return is_only and _is_own(source, makers, readers, outputs)
