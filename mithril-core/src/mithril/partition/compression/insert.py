"""Puts compressed sums in the place of those of marked gradients.

A sum is found by going from the mark, back and on, through what only moves, casts or scales the
gradient; back into a loop, if that makes it. Where something is kept from step to step, the sum is
taken once a step: behind loops, and of all micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mithril.cost import Hardware
from mithril.errors import PlanError
from mithril.ir import Builder, Graph, Node, Value
from mithril.ir.op import Tensors
from mithril.ir.rewrite import all_nodes
from mithril.mesh import MICRO
from mithril.ops.arithmetic import Divide, Multiply
from mithril.ops.collective import AllReduce, Collective, ReduceScatter, TakeShard
from mithril.ops.compression import MarkGradient
from mithril.ops.elementwise import Cast
from mithril.ops.shape import Movement
from mithril.options import GradientCompression
from mithril.partition.compression.asked import Compression
from mithril.partition.compression.loops import take_sums_behind_loops
from mithril.partition.compression.state import KeptState, rewrite_with_state
from mithril.partition.compression.sums import Sum, compress_sum
from mithril.plan import Program

MOVES = (Collective, TakeShard, Cast, Movement)
"""Ops that leave a gradient what it is."""


def compress_gradients(program: Program, asked: Compression, hardware: Hardware) -> Program:
    """Return the program with sums of gradients compressed, and no marks.

    Args:
        program: a local program, forward and backward in one.
        asked: how gradients travel.
        hardware: the profile that prices collectives.

    Raises:
        PlanError: something is kept from step to step of a sum that is taken several times in it.
    """
    if not any(isinstance(node.op, MarkGradient) for node in all_nodes(program.graph)):
        return program
    kept = dict(_find_sums(program.graph, asked, keeps_state=True))
    graph = take_sums_behind_loops(program.graph, {n: m.parameter for n, (m, _) in kept.items()})
    program = replace(program, graph=graph)
    sums = dict(_find_sums(graph, asked))
    _check_once(program, {node: mark for node, (mark, form) in sums.items() if form.keeps_state})
    state = KeptState(Builder(), program.mesh)

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if isinstance(node.op, MarkGradient):
            return operands
        if node not in sums:
            return None
        mark, form = sums[node]
        return compress_sum(Sum(node, mark, form, program.mesh, hardware, state), operands[0])

    return rewrite_with_state(program, visit, state)


def _find_sums(
    graph: Graph, asked: Compression, *, keeps_state: bool = False
) -> Iterator[tuple[Node, tuple[MarkGradient, GradientCompression]]]:
    """Yield each sum of a marked gradient; with `keeps_state` only those that keep something."""
    producers, uses = graph.producers(), graph.uses()
    for node in graph.nodes:
        if isinstance(node.op, MarkGradient) and node.op.keeps_state >= keeps_state:
            form = asked.find(node.op.parameter)
            assert form is not None, "only such gradients are marked"
            for found in _walk_back(node.inputs[0], producers):
                yield found, (node.op, form)
            for found in _walk_on(node.outputs[0], uses):
                yield found, (node.op, form)


def _check_once(program: Program, sums: Mapping[Node, MarkGradient]) -> None:
    """Raise where a sum that keeps something is taken of each micro-batch."""
    if MICRO not in program.mesh.names:
        return
    producers = program.graph.producers()
    for node, mark in sums.items():
        if not any(map(_is_over_time, _list_before(node, producers))):
            raise PlanError(
                f"gradient_compression keeps a state of '{mark.parameter}', whose gradient is "
                f"summed over devices in each micro-batch; use zero=1, or a form without error "
                f"feedback"
            )


def _list_before(node: Node, producers: Mapping[Value, Node]) -> Iterator[Node]:
    """Yield a sum, and what a gradient went through before it."""
    yield node
    while node.inputs[0] in producers:
        node = producers[node.inputs[0]]
        if not isinstance(node.op, (*MOVES, MarkGradient)):
            return
        yield node


def _is_over_time(node: Node) -> bool:
    return isinstance(node.op, Collective) and MICRO in node.op.axes


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
        if isinstance(node.op, MOVES) or _scales(node, value):
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
