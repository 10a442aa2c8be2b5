"""What the backward of a local graph reads of its forward, and how much memory that takes.

A node is *late* if it is of another phase than the forward, or needs a result of such a node; the
other nodes are *early*. What depends on no input, such as which part of a mesh axis a device is,
may be shared by all phases: it makes nobody late, and is early where an early node reads it. A
residual is a value that an early node makes and a late one reads. What a forward loop stacks up for
a backward loop is a residual of its body, once for each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from mithril.ir import Graph, Node, Phase, Value


@dataclass(frozen=True, slots=True, eq=False)
class Residual:
    """A forward value that the backward reads.

    Args:
        value: of the graph, or of the body of a forward loop.
        node: what makes it; None for what an iteration of a loop starts from.
        times: how many of it are kept at once: the iterations of the loops around it.
        scope: layer path of what makes it.
    """

    value: Value
    node: Node | None
    times: int
    scope: str = ""

    @property
    def bytes(self) -> int:
        """How much memory it takes from forward to backward."""
        return self.times * self.value.type.nbytes


def split_phases(graph: Graph) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the early and the late nodes of a graph, each in order; see the module's text."""
    early: set[Node] = set()
    after: set[Value] = set()
    fixed = find_fixed(graph)
    for node in graph.nodes:
        if node.phase == Phase.forward and after.isdisjoint(node.inputs):
            early.add(node)
        else:
            after.update(value for value in node.outputs if value not in fixed)
    early |= _find_shared(graph, early, fixed)
    nodes = graph.nodes
    return tuple(n for n in nodes if n in early), tuple(n for n in nodes if n not in early)


def _find_shared(graph: Graph, early: Collection[Node], fixed: set[Value]) -> set[Node]:
    """Return what early nodes need that depends on no input and is of a later phase."""
    read, found = {value for node in early for value in node.inputs}, set[Node]()
    for node in reversed(graph.nodes):
        if node not in early and not read.isdisjoint(node.outputs):
            assert fixed.issuperset(node.outputs), "early nodes need nothing else that is late"
            found.add(node)
            read.update(node.inputs)
    return found


def find_residuals(graph: Graph) -> tuple[Residual, ...]:
    """Return what the backward reads of the forward, in the order in which it is made.

    Args:
        graph: a local one; gradients that the body of a loop takes by itself are found, too.
    """
    return tuple(_iterate(graph, 1))


def find_fixed(graph: Graph) -> set[Value]:
    """Return the values that depend on no input, such as constants."""
    fixed: set[Value] = set()
    for node in graph.nodes:
        if fixed.issuperset(node.inputs):
            fixed.update(node.outputs)
    return fixed


def find_stack(node: Node, value: Value, count: int) -> Value | None:
    """Return the value of its body of which a loop makes a stack.

    Args:
        node: a forward loop.
        value: one of its results.
        count: how many slices there are to be.
    """
    op = node.op
    if not op.bodies or op.iterations != count:
        return None
    position = node.outputs.index(value)
    made = list(op.bodies[0].outputs.values())
    return None if position < len(op.carries) else made[position]


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """What a loop of the forward stacks up, and one of the backward takes slice by slice.

    Args:
        value: the stack, a result of the first loop.
        forward: that loop.
        made: the value of its body of which it is.
        slice: the input of the other body that is a slice of it.
    """

    value: Value
    forward: Node
    made: Value
    slice: Value


def find_stacks(
    backward: Node,
    makers: Mapping[Value, Node],
    original: Callable[[Value], Value | None] = lambda value: value,
) -> Iterator[Stack]:
    """Yield the stacks of which a loop takes slices; nothing for a node that is no loop.

    Args:
        backward: any node.
        makers: the nodes of the forward by their results.
        original: returns the value of the forward that an operand is, if it is one.
    """
    slices = backward.op.slices
    operands = backward.inputs[len(backward.inputs) - len(slices) :]
    for operand, inner in zip(operands, slices, strict=True):
        value = original(operand)
        maker = None if value is None else makers.get(value)
        if value is None or maker is None:
            continue
        made = find_stack(maker, value, backward.op.iterations)
        if made is not None:
            yield Stack(value, maker, made, inner)


def match_inputs(
    forward: Node,
    backward: Node,
    makers: Mapping[Value, Node],
    original: Callable[[Value], Value | None] = lambda value: value,
) -> Iterator[tuple[Value, Value]]:
    """Yield the values of the body of a forward loop that inputs of a backward loop's body are.

    These are what is the same in all iterations, slices of the same operand, and of stacks.

    Args:
        forward: the loop that makes stacks.
        backward: the one that takes slices of them.
        makers: as of `find_stacks`.
        original: likewise.
    """
    taken = [original(value) for value in backward.inputs]
    new, old = backward.op, forward.op
    split, first = len(taken) - len(new.slices), len(forward.inputs) - len(old.slices)
    start, carried = len(new.carries), len(old.carries)
    same = dict(zip(taken[start:split], new.bodies[0].inputs[start:split], strict=True))
    each = dict(zip(taken[split:], new.slices, strict=True))
    inside = forward.op.bodies[0].inputs
    for position, value in enumerate(forward.inputs[carried:], start=carried):
        found = (same if position < first else each).get(value)
        if found is not None:
            yield inside[position], found
    for stack in find_stacks(backward, makers, original):
        if stack.forward is forward:
            yield stack.made, stack.slice


def _iterate(graph: Graph, times: int) -> Iterator[Residual]:
    early, late = split_phases(graph)
    makers = {value: node for node in early for value in node.outputs}
    read = dict.fromkeys(value for node in late for value in node.inputs)
    stacked = {s.value: s.made for node in late for s in find_stacks(node, makers)}
    for node in early:
        for value in node.outputs:
            if value in read and value not in stacked:
                yield Residual(value, node, times, node.scope)
        yield from _iterate_inside(node, stacked, times)
    for node in late:
        for body in node.op.bodies:
            yield from _iterate(body, times * node.op.iterations)


def _iterate_inside(node: Node, stacked: dict[Value, Value], times: int) -> Iterator[Residual]:
    """Yield what a loop of the forward keeps, and what gradients inside its body keep."""
    for body in node.op.bodies:
        inner = times * node.op.iterations
        wanted = {stacked[value] for value in node.outputs if value in stacked}
        makers = body.producers()
        for value in dict.fromkeys((*node.op.carries, *body.values())):
            maker = makers.get(value)
            if value in wanted and not (maker is not None and maker.op.bodies):
                yield Residual(value, maker, inner, node.scope)
        for nested in body.nodes:
            kept = _find_slices(nested, wanted)
            if kept:
                yield from _iterate_inside(nested, kept, inner)
        yield from _iterate(body, inner)


def _find_slices(node: Node, wanted: set[Value]) -> dict[Value, Value]:
    """Return the results of a loop in a body that are wanted, and what each is the stack of."""
    if not node.op.bodies:
        return {}
    found = {v: find_stack(node, v, node.op.iterations) for v in node.outputs if v in wanted}
    return {value: inner for value, inner in found.items() if inner is not None}
