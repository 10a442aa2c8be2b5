"""What a compiler that sees a whole program makes of a local graph, as XLA does.

Fused ops are looked into, operands of batched products are laid out as matrices by transposes, and
what is computed twice is computed once. Everything starts as soon as its operands are there, so that
independent work can run side by side: what the backward needs of the forward may be made early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import TypeVar

from mithril.ir import Builder, Graph, Node, Tensors, Value
from mithril.ir.op import Op
from mithril.ir.rewrite import all_nodes, map_bodies, rewrite
from mithril.ops import reshape, transpose
from mithril.ops.definition import UserOp
from mithril.ops.linalg import Einsum

T = TypeVar("T")


def to_compiled_form(graph: Graph) -> Graph:
    """Return the graph that a compiler runs for another one; see the module's text."""
    while any(map(_is_fused, all_nodes(graph))):
        graph = rewrite(graph, _expand)
    return _finish(rewrite(graph, _arrange))


def _finish(graph: Graph) -> Graph:
    return _order(_merge(_map_nodes(graph)))


def _map_nodes(graph: Graph) -> Graph:
    nodes = tuple(map_bodies(node, _finish) for node in graph.nodes)
    return Graph(graph.inputs, nodes, graph.outputs)


def _is_fused(node: Node) -> bool:
    return type(node.op).expand is not Op.expand and not isinstance(node.op, UserOp)


def _expand(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
    return node.op.expand(operands) if _is_fused(node) else None


def _arrange(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
    """Put in the transposes of a batched product: batch dimensions stand first, in one order."""
    if not isinstance(node.op, Einsum):
        return None
    left, right, result = node.op.terms
    batch = [c for c in result if c in left and c in right]
    if not batch:
        return None
    contracted = [c for c in left if c in right and c not in result]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    x = transpose(operands[0], [left.index(c) for c in (*batch, *rows, *contracted)])
    y = transpose(operands[1], [right.index(c) for c in (*batch, *contracted, *columns)])
    b, r, k, n = (len(group) for group in (batch, rows, contracted, columns))
    names = [chr(ord("a") + i) for i in range(b + r + k + n)]
    of_x, of_y = names[: b + r + k], names[:b] + names[b + r :]
    made = names[: b + r] + names[b + r + k :]
    equation = f"{''.join(of_x)},{''.join(of_y)}->{''.join(made)}"
    (product,) = builder.apply(Einsum(equation), x, y)
    produced = [*batch, *rows, *columns]
    return [transpose(product, [produced.index(c) for c in result])]


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
