"""Which ops of a program may write into the memory of an input that is given up.

An op that returns its first operand with a part replaced copies the rest of it. Where that operand
is a donated input, or what such an op made, and nobody reads it later, the copy is for nobody.
Engines that write in place by themselves look at the ops' `in_place`; whether memory belongs to one
array alone is seen only when the program runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mithril.ir import Graph, Node, Value
from mithril.ops.dynamic_slicing import DynamicSlice, DynamicUpdateSlice
from mithril.plan import Program


def reuse_donated(program: Program, donate: Collection[int]) -> Program:
    """Return the program with the ops marked that may write into memory that is given up.

    Args:
        program: what runs on a device.
        donate: positions of inputs that are given up.
    """
    graph = program.graph
    marked = {node: _mark(node) for node in _find_writers(graph, donate)}
    if not marked:
        return program
    nodes = tuple(marked.get(node, node) for node in graph.nodes)
    return replace(program, graph=Graph(graph.inputs, nodes, graph.outputs))


def find_overwritten(program: Program, donate: Collection[int]) -> list[int]:
    """Return which of the inputs that are given up may be written over while the program runs."""
    inputs = program.graph.inputs
    written = {node.inputs[0] for node in _find_writers(program.graph, donate)}
    return [position for position in donate if inputs[position] in written]


def _find_writers(graph: Graph, donate: Collection[int]) -> list[Node]:
    users: defaultdict[Value, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for value in node.inputs:
            users[value].append(node)
    kept, makers = set(graph.outputs.values()), graph.producers()
    free = {graph.inputs[position] for position in donate}
    found = []
    for node in graph.nodes:
        if not isinstance(node.op, DynamicUpdateSlice):
            continue
        x, update, *_ = node.inputs
        readers = [user for user in users[x] if user is not node]
        is_alone = len(users[x]) == len(readers) + 1  # it may be the update, too
        if x in free and x not in kept and is_alone and _are_before(readers, update, makers):
            found.append(node)
        free.add(node.outputs[0])  # a copy, or memory that is free already
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


def _mark(node: Node) -> Node:
    assert isinstance(node.op, DynamicUpdateSlice)
    return replace(node, op=replace(node.op, in_place=True))


__all__ = ["find_overwritten", "reuse_donated"]
