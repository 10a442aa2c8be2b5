"""What a compiler that sees a whole program makes of a local graph, as XLA does.

Fused ops are looked into, operands of batched products are laid out as matrices by copies, sums of
columns are told from those of rows, and what is computed twice is computed once. Attention that the
engine computes in parts stays one op. Everything starts
as soon as its operands are there, so that independent work can run side by side: what the backward
needs may be made in the forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.ir import Builder, Graph, Node, Tensor, Tensors, Value
from mithril.ir.op import Cost, Op, Types
from mithril.ir.rewrite import all_nodes, map_bodies, rewrite
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.conv import Convolution, Convolving
from mithril.ops.definition import UserOp
from mithril.ops.linalg import Einsum
from mithril.ops.query_rows import count_rows_at_once
from mithril.ops.reduce import Sum
from mithril.ops.shape import Movement


def to_compiled_form(graph: Graph, scores_at_once: int = 0) -> Graph:
    """Return the graph that a compiler runs for another one; see the module's text.

    Args:
        graph: a local one.
        scores_at_once: of attention, as `Execution` has it.
    """

    def is_fused(node: Node) -> bool:
        return _is_fused(node) and not is_in_parts(node, scores_at_once)

    def expand(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return node.op.expand(operands) if is_fused(node) else None

    while any(map(is_fused, all_nodes(graph))):
        graph = rewrite(graph, expand)
    return _finish(rewrite(graph, _arrange))


def is_in_parts(node: Node, scores_at_once: int) -> bool:
    """Whether a node is attention that is computed in parts.

    Args:
        node: of a local graph.
        scores_at_once: as `Execution` has it.
    """
    if not scores_at_once or type(node.op) not in (Attention, AttentionGradient):
        return False
    q, k = (value.type for value in node.inputs[:2])
    return count_rows_at_once(q, k, scores_at_once) < q.shape[1]


def _finish(graph: Graph) -> Graph:
    return _order(_merge(_map_nodes(graph)))


def _map_nodes(graph: Graph) -> Graph:
    nodes = tuple(map_bodies(node, _finish) for node in graph.nodes)
    return Graph(graph.inputs, nodes, graph.outputs)


def _is_fused(node: Node) -> bool:
    return type(node.op).expand is not Op.expand and not isinstance(node.op, UserOp)


@dataclass(frozen=True)
class LayOut(Movement):
    """The same elements in another order in memory; it exists only while a plan is priced.

    Args:
        order: which.
    """

    name: ClassVar[str] = "transpose"
    """Whose rate, in elements a second, is measured."""
    order: str

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        """Return one operation for each element."""
        return replace(super().cost(inputs, outputs), flops=outputs[0].size)

    def infer(self, inputs: Types) -> Types:
        """Return the type of the operand."""
        return list(inputs)


@dataclass(frozen=True)
class ColumnSum(Sum):
    """A sum that keeps the last dimension; it exists only while a plan is priced.

    It adds up what lies far apart in memory, such as a gradient for a bias, for which compilers
    have slower kernels than for rows.
    """

    name: ClassVar[str] = "column_sum"


def _arrange(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
    """Lay out the operands of products and convolutions as the compiler's libraries take them."""
    if type(node.op) is Sum and _keeps_columns(node.op, operands[0]):
        return builder.apply(ColumnSum(node.op.axes, node.op.keepdims), *operands)
    if isinstance(node.op, Convolving):
        return _arrange_convolution(builder, node.op, operands)
    if not isinstance(node.op, Einsum):
        return None
    left, right, result = node.op.terms
    batch = [c for c in result if c in left and c in right]
    contracted = [c for c in left if c in right and c not in result]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    if not batch:  # of two matrices either may be transposed
        return None
    x = _lay_out(builder, operands[0], left, [*batch, *rows, *contracted])
    y = _lay_out(builder, operands[1], right, [*batch, *contracted, *columns])
    (made,) = builder.apply(node.op, x, y)
    return [_lay_out(builder, made, [*batch, *rows, *columns], result)]


def _keeps_columns(op: Sum, x: Tensor) -> bool:
    return x.ndim > 1 and x.shape[-1] > 1 and x.ndim - 1 not in op.axes


def _lay_out(builder: Builder, x: Tensor, letters: Sequence[str], wanted: Sequence[str]) -> Tensor:
    order = [letters.index(c) for c in wanted]
    return x if order == sorted(order) else builder.apply(LayOut(f"{order}"), x)[0]


def _arrange_convolution(builder: Builder, op: Convolving, operands: Tensors) -> Tensors:
    """Channels stand last in a convolution, and first in that which gives a weight's gradient."""
    orders = [f"{op.name} {position}" for position in range(len(operands))]
    if isinstance(op, Convolution):
        orders[0] = "channels last"
    given = zip(operands, orders, strict=True)
    laid_out = [builder.apply(LayOut(order), x)[0] for x, order in given]
    return [builder.apply(LayOut("channels first"), x)[0] for x in builder.apply(op, *laid_out)]


def _merge(graph: Graph) -> Graph:
    """Return the graph without nodes that compute what an earlier one has computed."""
    known: dict[Hashable, Node] = {}
    same: dict[Value, Value] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(same.get(value, value) for value in node.inputs)
        key = (node.op, inputs)
        before = None if node.op.is_collective or node.op.bodies else known.get(key)
        if before is not None:
            same.update(zip(node.outputs, before.outputs, strict=True))
            continue
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        known[key] = node
        nodes.append(node)
    outputs = {name: same.get(value, value) for name, value in graph.outputs.items()}
    return _drop_unused(Graph(graph.inputs, tuple(nodes), outputs))


def _drop_unused(graph: Graph) -> Graph:
    needed, kept = set(graph.outputs.values()), []
    for node in reversed(graph.nodes):
        if node.op.is_collective or needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return Graph(graph.inputs, tuple(reversed(kept)), graph.outputs)


def _order(graph: Graph) -> Graph:
    """Return the graph with its nodes by their distance from the inputs; collectives keep order."""
    depth: Counter[Value] = Counter()
    last = 0
    found: list[tuple[int, int, Node]] = []
    for number, node in enumerate(graph.nodes):
        level = 1 + max((depth[value] for value in node.inputs), default=0)
        if node.op.is_collective:
            level = last = max(level, last + 1)
        found.append((level, number, node))
        for value in node.outputs:
            depth[value] = level
    return Graph(graph.inputs, tuple(node for *_, node in sorted(found)), graph.outputs)
