"""Pairs of ops for which PyTorch has one function are made one op before a program is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.ir import Graph, Node, Op, Repeat, Value
from mithril.ir.op import Types
from mithril.ops.arithmetic import Add
from mithril.ops.linalg import Einsum


@dataclass(frozen=True)
class EinsumAdd(Op):
    """An einsum plus a vector along the last dimension: what a linear layer computes.

    It is no op of the core: it exists only while a program is written.
    """

    name: ClassVar[str] = "einsum_add"
    equation: str

    def infer(self, inputs: Types) -> Types:
        """Return the type of the einsum."""
        return Einsum(self.equation).infer(inputs[:2])


def fused(graph: Graph) -> Graph:
    """Return a graph that computes the same with fewer nodes, in loops too."""
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    uses.update(graph.outputs.values())
    products = {
        node.outputs[0]: node
        for node in graph.nodes
        if isinstance(node.op, Einsum) and uses[node.outputs[0]] == 1
    }
    joined: dict[Node, Node] = {}
    absorbed: set[Node] = set()
    for node in graph.nodes:
        found = _linear(node, products)
        if found is not None:
            product, bias = found
            op = EinsumAdd(product.op.equation)  # type: ignore[attr-defined]
            joined[node] = replace(node, op=op, inputs=(*product.inputs, bias))
            absorbed.add(product)
    nodes = (_inside(joined.get(node, node)) for node in graph.nodes if node not in absorbed)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _inside(node: Node) -> Node:
    if not isinstance(node.op, Repeat):
        return node
    return replace(node, op=replace(node.op, body=fused(node.op.body)))


def _linear(node: Node, products: Mapping[Value, Node]) -> tuple[Node, Value] | None:
    """Return the product, and the vector, that a node adds."""
    if not isinstance(node.op, Add):
        return None
    for x, bias in (node.inputs, node.inputs[::-1]):
        product = products.get(x)
        if product is None or bias.type.rank != 1 or bias.type.dtype != x.type.dtype:
            continue
        left, right, result = product.op.terms  # type: ignore[attr-defined]
        rows = [c for c in left if c not in right]
        columns = [c for c in right if c not in left]
        if (
            len(columns) == 1
            and list(result) == [*rows, *columns]
            and bias.type.size == x.type.shape[-1]
        ):
            return product, bias
    return None
