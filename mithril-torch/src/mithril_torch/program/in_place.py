"""Writes results into the memory of operands that nobody reads afterwards.

PyTorch takes memory for every result, and what is large is read from slow memory before it is
written. What an op of `WRITABLE` is given last, and what an op before made anew, is written over
instead: residual sums, sums and products of gradients, rectified norms, logits. Products of
matrices are added there by the function that multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import Graph, Node, Op, Types, Value, find_reused_operands, makes_anew, map_bodies
from mithril.spi.ops import (
    Add,
    AvgPool,
    AvgPoolGradient,
    BatchNorm,
    BatchNormGradient,
    ChannelGradient,
    ChannelMoments,
    ChannelSums,
    Constant,
    Convolving,
    CrossEntropyGradient,
    GeluGradient,
    Greater,
    GroupNorm,
    GroupNormGradient,
    MaxPool,
    MaxPoolGradient,
    Multiply,
    NormalizeChannels,
    Relu,
    SiluGradient,
    Where,
)

from mithril_torch.program.fusing import EinsumAdd, EinsumInto
from mithril_torch.program.fusions import Fusion
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
    AvgPool, AvgPoolGradient, BatchNorm, BatchNormGradient, ChannelGradient, ChannelMoments,
    ChannelSums, Convolving, EinsumAdd, EinsumInto, GroupNorm, GroupNormGradient, MaxPool,
    MaxPoolGradient, NormalizeChannels, Fusion, Relu, ReluGradient,
)  # fmt: skip
"""Ops that on PyTorch return neither an operand nor a view of one, beside those of every engine."""

WRITABLE: Mapping[type[Op], tuple[int, ...]] = {
    Add: (0, 1), CrossEntropyGradient: (0,), EinsumAdd: (2,), GeluGradient: (1,),
    Multiply: (0, 1), Relu: (0,), ReluGradient: (1,), SiluGradient: (1,),
}  # fmt: skip
"""Ops whose first result can be made in the memory of an operand: of which ones."""

WRITABLE_IF_CHANNELS_LAST: Mapping[type[Op], tuple[int, ...]] = {BatchNormGradient: (0,)}
"""The same of ops that do so where images have their channels last, of which plans know nothing."""

REUSED_OPERANDS = tuple(
    (op.name, which) for op, which in WRITABLE.items() if not issubclass(op, WrittenOp)
)
"""The former of the ops that plans have, by name."""


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
    found = find_reused(graph)
    nodes = (
        replace(node, op=_write_over(node.op, found[node])) if node in found else node
        for node in graph.nodes
    )
    inside = tuple(map_bodies(node, write_in_place) for node in nodes)
    return Graph(graph.inputs, inside, graph.outputs)


def find_reused(graph: Graph) -> dict[Node, int]:
    """Return the nodes whose first result can be made in the memory of an operand, and in which.

    Args:
        graph: a local one; its loops are not looked into.
    """
    writable = {**WRITABLE, **WRITABLE_IF_CHANNELS_LAST}

    def list_writable(node: Node) -> tuple[int, ...]:
        op = node.op
        return op.writable if isinstance(op, Fusion) else writable.get(type(op), ())

    return find_reused_operands(graph, list_writable, _is_anew)


def _write_over(op: Op, operand: int) -> Op:
    """Return what makes the result of an op in the memory of an operand."""
    if isinstance(op, Fusion):
        return replace(op, over=operand)
    return EinsumInto(op.equation) if isinstance(op, EinsumAdd) else InPlace(op, operand)


def _is_anew(node: Node) -> bool:
    """Whether what a node makes shares no memory with what it reads."""
    return makes_anew(node) or isinstance(node.op, _ANEW)
