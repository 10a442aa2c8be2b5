"""Puts compressed sums in the place of those of marked gradients.

A sum is found by going from the mark, back and on, through what only moves, casts or scales the
gradient; back into a loop, if that makes it. A sum over several axes of which not all are
compressed is cut in two, the plain part first; one that scatters is taken axis after axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mithril.cost import Hardware
from mithril.ir import Builder, Graph, Node, Tensor, Value
from mithril.ir.op import Tensors
from mithril.ir.rewrite import all_nodes, rewrite
from mithril.mesh import MICRO, Mesh
from mithril.ops.arithmetic import Divide, Multiply
from mithril.ops.collective import AllReduce, Collective, ReduceScatter, TakeShard
from mithril.ops.compression import MarkGradient
from mithril.ops.elementwise import Cast
from mithril.ops.shape import Movement
from mithril.options import GradientCompression
from mithril.partition.compression.asked import Compression
from mithril.partition.compression.exchange import Exchange, choose_exchange
from mithril.plan import Program

MOVES = (Collective, TakeShard, Cast, Movement)
"""Ops that leave a gradient what it is."""


def compress_gradients(program: Program, asked: Compression, hardware: Hardware) -> Program:
    """Return the program with sums of gradients compressed, and no marks.

    Args:
        program: a local program, forward and backward in one.
        asked: how gradients travel.
        hardware: the profile that prices collectives.
    """
    if not any(isinstance(node.op, MarkGradient) for node in all_nodes(program.graph)):
        return program
    sums = dict(_find_sums(program.graph, asked))

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if isinstance(node.op, MarkGradient):
            return operands
        form = sums.get(node)
        return None if form is None else _compress(node, operands, form, program.mesh, hardware)

    return replace(program, graph=rewrite(program.graph, visit))


def _find_sums(graph: Graph, asked: Compression) -> Iterator[tuple[Node, GradientCompression]]:
    producers, uses = graph.producers(), graph.uses()
    for node in graph.nodes:
        if isinstance(node.op, MarkGradient):
            form = asked.find(node.op.parameter)
            assert form is not None, "only such gradients are marked"
            for found in _walk_back(node.inputs[0], producers):
                yield found, form
            for found in _walk_on(node.outputs[0], uses):
                yield found, form


def _walk_back(value: Value, producers: Mapping[Value, Node]) -> Iterator[Node]:
    """Yield the sums over devices that a gradient went through since it was made."""
    while value in producers:
        node = producers[value]
        op = node.op
        for body in op.bodies:
            place = node.outputs.index(value)
            if place >= len(op.carries):
                yield from _walk_back(list(body.outputs.values())[place], body.producers())
        if _is_sum(node):
            yield node
        elif not isinstance(op, MOVES):
            return
        value = node.inputs[0]


def _walk_on(value: Value, uses: Mapping[Value, Sequence[tuple[Node, int]]]) -> Iterator[Node]:
    """Yield the sums over devices that a gradient goes through as a partial sum."""
    for node, _ in uses.get(value, ()):
        if _is_sum(node):
            yield node
        elif isinstance(node.op, MOVES) or _scales(node, value):
            yield from _walk_on(node.outputs[0], uses)


def _is_sum(node: Node) -> bool:
    op = node.op
    if not isinstance(op, AllReduce | ReduceScatter) or op.reduction != "sum":
        return False
    return any(axis != MICRO for axis in op.axes)


def _scales(node: Node, value: Value) -> bool:
    """Whether a node multiplies a value by a number, or divides it."""
    if not isinstance(node.op, Multiply | Divide) or node.inputs[0] is node.inputs[1]:
        return False
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    is_divisor = isinstance(node.op, Divide) and other is node.inputs[0]
    return other.type.rank == 0 and not is_divisor


def _compress(
    node: Node, operands: Tensors, form: GradientCompression, mesh: Mesh, hardware: Hardware
) -> Tensors | None:
    """Return what takes the place of a sum; None where it stays as it is."""
    op = node.op
    assert isinstance(op, AllReduce | ReduceScatter), "it is one of those that are looked for"
    (x,) = operands
    axes = tuple(axis for axis in op.axes if _is_named(axis, form, mesh))
    exchange = choose_exchange(Exchange(x.builder, node, axes, mesh, hardware), form, x)
    if exchange is None:
        return None
    rest = tuple(axis for axis in op.axes if axis not in axes)
    if isinstance(op, AllReduce):
        if rest:
            (x,) = exchange.issue(AllReduce(rest, "sum"), x)
        return [exchange.add(x)]
    return [_scatter(exchange, op, rest, x)]


def _is_named(axis: str, form: GradientCompression, mesh: Mesh) -> bool:
    if axis == MICRO:
        return False
    origin = next(a.origin for a in mesh.axes if a.name == axis)
    return form.axes is None or axis in form.axes or origin in form.axes


def _scatter(exchange: Exchange, op: ReduceScatter, rest: tuple[str, ...], x: Tensor) -> Tensor:
    """Return the own part of a sum: axis after axis, in the order in which they cut it."""
    for axis in op.axes:
        count = exchange.mesh.sizes[axis]
        if axis in rest:
            (x,) = exchange.issue(ReduceScatter((axis,), "sum", op.dimension, count), x)
        elif not rest:
            return exchange.scatter(x, op.dimension)
        else:
            x = replace(exchange, axes=(axis,)).scatter(x, op.dimension)
    return x
