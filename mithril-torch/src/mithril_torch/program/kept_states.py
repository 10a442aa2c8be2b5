"""Has recurrent layers keep what their gradients need, where one program computes both.

oneDNN keeps the gates of all positions, in a form and size of its own, which no plan can know: that
is memory beyond what a plan counts. A gradient in another program runs the layer again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import DType, Graph, Node, Op, TensorType, Types, Value, map_bodies
from mithril.spi.ops import Lstm, LstmGradient

OPAQUE = TensorType((0,), DType.uint8)
"""In the place of the type of what is kept."""


@dataclass(frozen=True)
class LstmKeeping(Op):
    """A layer of long short-term memory that also returns what its gradient needs.

    It is no op of the core: it exists only while a program is written.
    """

    name: ClassVar[str] = "lstm_keeping"
    of: Lstm

    def infer(self, inputs: Types) -> Types:
        """Return the types of the layer's results, and of what is kept."""
        return [*self.of.infer(inputs), OPAQUE]


@dataclass(frozen=True)
class LstmGradientOfKept(Op):
    """Its gradient; operands (those of the layer without biases, its results, cotangents, biases).

    It is no op of the core: it exists only while a program is written.
    """

    name: ClassVar[str] = "lstm_gradient_of_kept"
    of: LstmGradient

    def infer(self, inputs: Types) -> Types:
        """Return the types of the gradients."""
        return [*inputs[:5], *inputs[12:13]]


def keep_states(graph: Graph) -> Graph:
    """Return a graph in which layers of long short-term memory are not run again for gradients."""
    makers = graph.producers()
    kept: dict[Node, Node] = {}
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        maker = makers.get(node.inputs[5]) if isinstance(node.op, LstmGradient) else None
        if maker is None or not isinstance(maker.op, Lstm) or not _is_of(node, maker):
            continue
        if maker not in kept:
            outputs = (*maker.outputs, Value(OPAQUE))
            kept[maker] = replace(maker, op=LstmKeeping(maker.op), outputs=outputs)
        inputs = (*node.inputs[:5], *kept[maker].outputs, *node.inputs[6:])
        assert isinstance(node.op, LstmGradient), "looked at above"
        found[node] = replace(node, op=LstmGradientOfKept(node.op), inputs=inputs)
    nodes = (found.get(node) or kept.get(node) or node for node in graph.nodes)
    return Graph(
        graph.inputs, tuple(map_bodies(node, keep_states) for node in nodes), graph.outputs
    )


def _is_of(gradient: Node, layer: Node) -> bool:
    """Whether a gradient is that of a layer in the same direction, of the same operands."""
    operands = (*gradient.inputs[:5], *gradient.inputs[9:])
    return (
        isinstance(gradient.op, LstmGradient)
        and isinstance(layer.op, Lstm)
        and gradient.op.reverse == layer.op.reverse
        and operands == layer.inputs
    )
