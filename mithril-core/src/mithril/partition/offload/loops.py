"""Stacks that loops keep for the backward, which go to the host arena slice by slice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from mithril.ir import Graph, Node, Phase, Repeat, Value
from mithril.ops.host import FromHost, ToHost
from mithril.partition.offload.insert import DependencyFinder, insert, with_outputs


def offload_loops(graph: Graph, threshold: int, arena: str) -> Graph:
    """Return a graph whose loops put what they stack for the backward on the host by slices."""
    uses = graph.uses()
    written: defaultdict[Node, list[int]] = defaultdict(list)
    read: defaultdict[Node, list[int]] = defaultdict(list)
    for node in graph.nodes:
        if not isinstance(node.op, Repeat) or node.phase != Phase.forward:
            continue
        for number in range(node.op.carried, len(node.outputs)):
            value = node.outputs[number]
            users = uses.get(value, ())
            if value.type.size // node.op.count <= threshold or len(users) != 1:
                continue
            user, position = users[0]
            if value not in graph.outputs.values() and _takes_slices(user, position):
                written[node].append(number)
                read[user].append(position)
    if not written:
        return graph
    nodes = []
    for node in graph.nodes:
        node = _write_slices(node, written[node], arena) if node in written else node
        nodes.append(_read_slices(node, read[node]) if node in read else node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _takes_slices(node: Node, position: int) -> bool:
    """Return whether a loop of the backward takes an operand slice by slice, and uses it."""
    op = node.op
    if not isinstance(op, Repeat) or node.phase == Phase.forward:
        return False
    value = op.body.inputs[position]
    is_used = any(value in each.inputs for each in op.body.nodes)
    return value in op.slices and is_used and value not in op.body.outputs.values()


def _write_slices(node: Node, numbers: Collection[int], arena: str) -> Node:
    """Return a loop that puts slices of some of its results on the host."""
    op = node.op
    assert isinstance(op, Repeat), "it is asked of loops"
    at = {each: position for position, each in enumerate(op.body.nodes)}
    uses, made = op.body.uses(), op.body.producers()
    outputs = list(op.body.outputs.items())
    behind: defaultdict[int, list[Node]] = defaultdict(list)
    for number in numbers:
        name, value = outputs[number]
        held = Value(value.type)
        copy = Node(ToHost(arena), (value,), (held,), node.scope, node.source, node.phase)
        outputs[number] = name, held
        users = [at[user] for user, _ in uses.get(value, ())]
        behind[max([*users, at[made[value]] if value in made else -1])].append(copy)
    body = with_outputs(insert(op.body, behind, {}, []), dict(outputs))
    return replace(node, op=replace(op, body=body))


def _read_slices(node: Node, positions: Iterable[int]) -> Node:
    """Return a loop that brings slices of some of its operands back from the host."""
    op = node.op
    assert isinstance(op, Repeat), "it is asked of loops"
    # Slices and what is the same in every iteration are there before it begins.
    early = set(op.body.inputs) - set(op.carries)
    finder, uses = DependencyFinder(op.body, early), op.body.uses()
    at = {each: position for position, each in enumerate(op.body.nodes)}
    ahead: defaultdict[int, list[Node]] = defaultdict(list)
    renamed: list[tuple[int, dict[Value, Value]]] = []
    for position in positions:
        value = op.body.inputs[position]
        first = min(at[user] for user, _ in uses[value])
        dependency = finder.find(first, first) or _find_carry(op)
        fetched = Value(value.type)
        given = (value,) if dependency is None else (value, dependency)
        back = FromHost(is_last=True)
        ahead[first].append(Node(back, given, (fetched,), node.scope, node.source, node.phase))
        renamed.append((first, {value: fetched}))
    return replace(node, op=replace(op, body=insert(op.body, {}, ahead, renamed)))


def _find_carry(op: Repeat) -> Value | None:
    """Return what an iteration of the backward starts from."""
    return next((value for value in op.carries if value.type.size), None)


__all__ = ["offload_loops"]
