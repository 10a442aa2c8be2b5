"""Fuses pairs of ops for which PyTorch has one function, before a program is emitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import Graph, Node, Types, Value, map_bodies
from mithril.spi.ops import Add, Einsum

from mithril_torch.program.written_op import WrittenOp


@dataclass(frozen=True)
class EinsumAdd(WrittenOp):
    """An einsum plus a third operand: a vector along its last dimension, or of its own shape."""

    name: ClassVar[str] = "einsum_add"
    equation: str

    def infer(self, inputs: Types) -> Types:
        """Return the type of the einsum."""
        return Einsum(self.equation).infer(inputs[:2])


@dataclass(frozen=True)
class AddInto(WrittenOp):
    """A tensor that something is added to, in its memory."""

    name: ClassVar[str] = "add_into"

    def infer(self, inputs: Types) -> Types:
        """Return the type of the tensor."""
        return inputs[:1]


@dataclass(frozen=True)
class EinsumInto(WrittenOp):
    """An einsum that is added to a third operand, in its memory."""

    name: ClassVar[str] = "einsum_into"
    equation: str

    def infer(self, inputs: Types) -> Types:
        """Return the type of the einsum."""
        return Einsum(self.equation).infer(inputs[:2])


@dataclass(frozen=True)
class OneDnnProduct(WrittenOp):
    """A product that oneDNN computes: an einsum, perhaps plus a third operand."""

    name: ClassVar[str] = "onednn_product"
    product: Einsum | EinsumAdd | EinsumInto

    def infer(self, inputs: Types) -> Types:
        """Return the type of the product."""
        return self.product.infer(inputs)


def accumulate_in_place(graph: Graph, free: Collection[Value]) -> Graph:
    """Return a graph in which sums grow in the memory of inputs that nobody else uses.

    Args:
        graph: a local one.
        free: these inputs.
    """
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    output_uses = Counter(graph.outputs.values())
    makers = graph.producers()
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        if (
            not isinstance(node.op, Add)
            or output_uses[node.outputs[0]] != 1
            or uses[node.outputs[0]]
        ):
            continue
        for x, term in (node.inputs, node.inputs[::-1]):
            if x in free and uses[x] == 1 and not output_uses[x] and x.type == node.outputs[0].type:
                product = makers.get(term)
                is_own = uses[term] == 1 and not output_uses[term] and term.type == x.type
                if product is not None and isinstance(product.op, Einsum) and is_own:
                    op = EinsumInto(product.op.equation)
                    found[product] = replace(node, op=op, inputs=(*product.inputs, x))
                    found[node] = found[product]
                else:
                    found[node] = replace(node, op=AddInto(), inputs=(x, term))
                break
    nodes = dict.fromkeys(found.get(node, node) for node in graph.nodes)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def find_aliases(graph: Graph) -> dict[Value, Value]:
    """Return the inputs in whose memory outputs are made, with these outputs."""
    grown = {AddInto: 0, EinsumInto: 2}
    kinds = ((node, getattr(node.op, "product", node.op)) for node in graph.nodes)
    grows = (
        (node.inputs[grown[type(op)]], node.outputs[0]) for node, op in kinds if type(op) in grown
    )
    return {x: made for x, made in grows if x in graph.inputs}


def fuse(graph: Graph) -> Graph:
    """Return a graph that computes the same with fewer nodes, in loops too."""
    return _absorb_products(graph, _match_linear, fuse)


def join_sums(graph: Graph) -> Graph:
    """Return a graph in which a product of matrices and what is added to it are one op.

    Such as residual sums, and gradients of what several products read. It is the later of two
    operands that waits for the sum: what it multiplies is not held for longer. In loops too.
    """
    made_at = {value: at for at, node in enumerate(graph.nodes) for value in node.outputs}

    def match(node: Node, products: Mapping[Value, Node]) -> tuple[Node, Value] | None:
        if not isinstance(node.op, Add) or len(set(node.inputs)) < 2:
            return None
        other, last = sorted(node.inputs, key=lambda value: made_at.get(value, -1))
        product = products.get(last)
        if product is None or not _is_of_matrices(product):
            return None
        return (product, other) if other.type == last.type == node.outputs[0].type else None

    return _absorb_products(graph, match, join_sums)


def _absorb_products(
    graph: Graph,
    match: Callable[[Node, Mapping[Value, Node]], tuple[Node, Value] | None],
    within: Callable[[Graph], Graph],
) -> Graph:
    """Return a graph in which products are parts of the sums that alone read them.

    Args:
        graph: a local one.
        match: returns the product that a node adds, of those that are read once, and what to.
        within: does the same to the bodies of loops.
    """
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
        found = match(node, products)
        if found is not None:
            product, other = found
            op = EinsumAdd(product.op.equation)  # type: ignore[attr-defined]
            joined[node] = replace(node, op=op, inputs=(*product.inputs, other))
            absorbed.add(product)
    nodes = (joined.get(node, node) for node in graph.nodes if node not in absorbed)
    return Graph(graph.inputs, tuple(map_bodies(node, within) for node in nodes), graph.outputs)


def _is_of_matrices(product: Node) -> bool:
    """Whether a product of floats is one of two matrices, made as it lies."""
    left, right, result = product.op.terms  # type: ignore[attr-defined]
    rows, columns = ([c for c in t if c not in u] for t, u in ((left, right), (right, left)))
    is_plain = len(left) == len(right) == len(result) == 2 and list(result) == [*rows, *columns]
    return is_plain and product.outputs[0].type.dtype.is_float


def _match_linear(node: Node, products: Mapping[Value, Node]) -> tuple[Node, Value] | None:
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
