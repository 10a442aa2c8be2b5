"""Has recurrent layers keep what their gradients need, where one program computes both.

oneDNN keeps the gates of all positions, in a form and size of its own, which no plan can know: that
is memory beyond what a plan counts. A gradient in another program runs the layer again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import DType, Graph, Node, TensorType, Types, Value, map_bodies
from mithril.spi.ops import Lstm, LstmGradient

from mithril_torch.program.written_op import WrittenOp

OPAQUE = TensorType((0,), DType.uint8)
"""In the place of the type of what is kept."""


@dataclass(frozen=True)
class LstmKeeping(WrittenOp):
    """A layer of long short-term memory that also returns what its gradient needs."""

    name: ClassVar[str] = "lstm_keeping"
    of: Lstm

    def infer(self, inputs: Types) -> Types:
        """Return the types of the layer's results, and of what is kept."""
        return [*self.of.infer(inputs), OPAQUE]


@dataclass(frozen=True)
class LstmGradientOfKept(WrittenOp):
    """Its gradient; operands (those of the layer but biases, its results, cotangents, biases)."""

    name: ClassVar[str] = "lstm_gradient_of_kept"
    of: LstmGradient

    def infer(self, inputs: Types) -> Types:
        """Return the types of the gradients."""
        return [*inputs[:5], *inputs[12:13]]


def keep_states(graph: Graph) -> Graph:
    """Return a graph in which layers of long short-term memory are not run again for gradients."""
    makers = graph.producers()
    changed: dict[Node, Node] = {}
    for node in graph.nodes:
        if not isinstance(node.op, LstmGradient):
            continue
        layer = makers.get(node.inputs[5])
        operands = (*node.inputs[:5], *node.inputs[9:])
        if layer is None or layer.op != Lstm(node.op.reverse) or layer.inputs != operands:
            continue
        if layer not in changed:
            results = (*layer.outputs, Value(OPAQUE))
            changed[layer] = replace(layer, op=LstmKeeping(layer.op), outputs=results)
        inputs = (*node.inputs[:5], *changed[layer].outputs, *node.inputs[6:])
        changed[node] = replace(node, op=LstmGradientOfKept(node.op), inputs=inputs)
    nodes = (map_bodies(changed.get(node, node), keep_states) for node in graph.nodes)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)
