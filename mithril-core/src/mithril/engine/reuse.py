"""Which ops of a program may write into the memory of an input that is given up.

An op that returns its first operand with a part replaced copies the rest of it, and an update makes
a new parameter. Where that operand is a donated input, or what such an op made, and nobody reads it
later, the copy is for nobody. Engines that write in place by themselves look at the ops'
`in_place`; whether memory belongs to one array alone is seen only when the program runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mithril.ir import Graph, Node, Value
from mithril.ops.dynamic_slicing import DynamicSlice, DynamicUpdateSlice
from mithril.ops.host import FromHost
from mithril.plan import Program


def reuse_donated(program: Program, donate: Collection[int]) -> Program:
    """Return the program with the ops marked that may write into memory that is given up.

    Args:
        program: what runs on a device.
        donate: positions of inputs that are given up.
    """
    graph = program.graph
    free = {graph.inputs[position] for position in donate}
    marked = mark_writers(graph, free)
    return program if marked is graph else replace(program, graph=marked)


def mark_writers(graph: Graph, free: Collection[Value]) -> Graph:
    """Return the graph with the ops marked that may write into memory that is given up.

    Args:
        graph: a local one, its nodes in the order in which they run.
        free: inputs that are given up.
    """
    found = _find_writers(graph, free)
    if not found:
        return graph
    nodes = tuple(
        replace(node, op=node.op.reuse(found[node])) if node in found else node
        for node in graph.nodes
    )
    return Graph(graph.inputs, nodes, graph.outputs)


def find_overwritten(program: Program, donate: Collection[int]) -> list[int]:
    """Return which of the inputs that are given up may be written over while the program runs."""
    inputs = program.graph.inputs
    found = _find_writers(program.graph, {inputs[position] for position in donate})
    written = {node.inputs[operand] for node, operands in found.items() for operand in operands}
    return [position for position in donate if inputs[position] in written]


def _find_writers(graph: Graph, given_up: Collection[Value]) -> dict[Node, list[int]]:
    """Return the nodes that may write into operands, and into which."""
    users: defaultdict[Value, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for value in node.inputs:
            users[value].append(node)
    kept, makers = set(graph.outputs.values()), graph.producers()
    given, free, ran = set(given_up), set(given_up), set[Node]()
    found: dict[Node, list[int]] = {}
    for node in graph.nodes:
        for operand, result in node.op.overwrites:
            x = node.inputs[operand]
            readers = [user for user in users[x] if user is not node]
            is_alone = len(users[x]) == len(readers) + 1  # it may be another operand, too
            if isinstance(node.op, DynamicUpdateSlice):
                have_run = _are_before(readers, node.inputs[1], makers)
            else:  # a reader may return what it reads, which is seen of handles alone
                have_run = ran.issuperset(readers) if x in given else not readers
            if x in free and x not in kept and is_alone and have_run:
                found.setdefault(node, []).append(operand)
            free.add(node.outputs[result])  # a copy, or memory that is free already
        if isinstance(node.op, FromHost):
            free.update(node.outputs)  # a copy that nobody has but the program
        # Others may read what a collective sends until it is waited for, at the latest where what
        # it makes is used.
        begun = {makers[value] for value in node.inputs if value in makers}
        ran |= {maker for maker in begun if maker.op.is_collective}
        if not node.op.is_collective:
            ran.add(node)
    return found


def _are_before(readers: Sequence[Node], update: Value, makers: Mapping[Value, Node]) -> bool:
    """Return whether what is written needs copies of parts that nodes read, so that they ran."""
    if not all(isinstance(node.op, DynamicSlice) for node in readers):
        return False
    missing, seen, waiting = set(readers), set[Value](), [update]
    while missing and waiting:
        value = waiting.pop()
        maker = makers.get(value)
        if maker is None or value in seen:
            continue
        seen.add(value)
        missing.discard(maker)
        waiting += maker.inputs
    return not missing


__all__ = ["find_overwritten", "mark_writers", "reuse_donated"]
