"""Sources: what a value is computed by, behind casts, views and gates that give it its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mithril.ir import Node, Value
from mithril.ops.control import After


def is_cheap(node: Node) -> bool:
    """Whether a node makes no more of its one operand than that is."""
    if len(node.inputs) != 1 or node.op.bodies or node.op.is_collective:
        return False
    return sum(value.type.nbytes for value in node.outputs) <= node.inputs[0].type.nbytes


def is_form(node: Node) -> bool:
    """Whether a node only brings its first operand into a form, or says what that comes after."""
    return is_cheap(node) or isinstance(node.op, After)


def walk_back(value: Value, makers: Mapping[Value, Node]) -> Iterator[Node]:
    """Yield what brings a value into its form, from the last node on, and what computes it.

    Args:
        value: of a graph.
        makers: the nodes of the graph by what they make.

    >>> from mithril.ir import Builder
    >>> from mithril.types import DType, TensorType
    >>> builder = Builder()
    >>> x = builder.input(TensorType((2, 2), DType.float32), "x")
    >>> graph = builder.build({"y": (x @ x).reshape(4)})
    >>> [node.op.name for node in walk_back(graph.outputs["y"], graph.producers())]
    ['reshape', 'einsum']
    """
    maker = makers.get(value)
    while maker is not None:
        yield maker
        maker = makers.get(maker.inputs[0]) if is_form(maker) else None


__all__ = ["is_cheap", "is_form", "walk_back"]
