"""Lays out, before a loop, the matrices that every iteration multiplies by.

XLA's library for CPUs packs the right operand of a product anew each time. If that is the same in
all iterations and few rows meet it, as in a recurrent layer, packing is most of the work, and takes
longer where what is added up stands along the last dimension. The matrix is transposed once, so
that it stands along the first.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mithril.spi import Graph, Node, Value, map_bodies
from mithril.spi.ops import Einsum, Repeat, Transpose

FEWEST = 4
"""Iterations from which on a transposition is worth its time."""
MOST_ROWS = 64
"""Rows up to which packing is much of a product."""


def lay_loop_weights(graph: Graph) -> Graph:
    """Return a graph whose loops multiply by matrices that lie so, loops inside of loops too."""
    nodes: list[Node] = []
    for node in graph.nodes:
        inside = map_bodies(node, lay_loop_weights)
        nodes += _lay(inside) if isinstance(inside.op, Repeat) else [inside]
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _lay(loop: Node) -> list[Node]:
    """Return a loop behind the transpositions of what it multiplies by."""
    op = loop.op
    assert isinstance(op, Repeat)
    if op.count < FEWEST:
        return [loop]
    uses, kept = op.body.uses(), set(op.body.outputs.values())
    given, inputs = list(loop.inputs), list(op.body.inputs)
    before: list[Node] = []
    laid: dict[Node, Node] = {}
    for position in range(op.carried, len(inputs) - op.stacked):
        weight = inputs[position]
        readers = list(uses.get(weight, ()))
        order = _find_order(*readers[0]) if len(readers) == 1 and weight not in kept else ()
        if not order:
            continue
        move = Transpose(order)
        type = move.infer([weight.type])[0]
        inputs[position], outer = Value(type, weight.name), Value(type, weight.name)
        before.append(replace(loop, op=move, inputs=(given[position],), outputs=(outer,)))
        given[position] = outer
        reader = readers[0][0]
        laid[reader] = _multiply_by(reader, inputs[position], order)
    nodes = tuple(laid.get(node, node) for node in op.body.nodes)
    body = Graph(tuple(inputs), nodes, op.body.outputs)
    return [*before, replace(loop, op=replace(op, body=body), inputs=tuple(given))]


def _multiply_by(node: Node, weight: Value, order: tuple[int, ...]) -> Node:
    """Return a product with a right operand whose dimensions stand in another order."""
    op = node.op
    assert isinstance(op, Einsum)
    left, right, result = op.terms
    equation = f"{left},{''.join(right[i] for i in order)}->{result}"
    return replace(node, op=Einsum(equation), inputs=(node.inputs[0], weight))


def _find_order(node: Node, operand: int) -> tuple[int, ...]:
    """Return the order in which the right operand of a product has what is added up first.

    Nothing if it has so already, or is not the right operand of a product of few rows.
    """
    if not isinstance(node.op, Einsum) or operand != 1:
        return ()
    left, right, result = node.op.terms
    added = [i for i, letter in enumerate(right) if letter not in result]
    others = [i for i, letter in enumerate(right) if letter in result and letter not in left]
    sizes = dict(zip(left, node.inputs[0].type.shape, strict=True))
    rows = math.prod(size for letter, size in sizes.items() if letter in result)
    is_matrix = added and others and len(added) + len(others) == len(right)
    order = (*added, *others)
    if not is_matrix or rows > MOST_ROWS or order == tuple(range(len(right))):
        return ()
    return order


__all__ = ["lay_loop_weights"]
