"""Puts what is gathered again right before its use: a backward would begin with all of it.

An engine that orders a program by itself would start every gather as soon as it can. So those of a
block come after something that the block before it takes: what is whole at once are two blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from mithril.ir import Node, Value
from mithril.ops.control import After
from mithril.partition.recompute.layers import find_layers


def gather_late(nodes: Sequence[Node], gathered: Collection[Value]) -> list[Node]:
    """Return nodes with what is gathered right before its first use, a block ahead at most.

    Args:
        nodes: of a program that runs without a break, in an order in which they can run.
        gathered: what is gathered again, and what is made of nothing but that.
    """
    if not any(value in gathered for node in nodes for value in node.outputs):
        return [*nodes]
    return _hold_back(_move_to_use(nodes, gathered), gathered)


def _move_to_use(nodes: Sequence[Node], gathered: Collection[Value]) -> list[Node]:
    makers = {value: node for node in nodes for value in node.outputs if value in gathered}
    ordered: dict[Node, None] = {}

    def put(node: Node) -> None:
        for value in node.inputs:
            if value in makers and makers[value] not in ordered:
                put(makers[value])
        ordered[node] = None

    for node in nodes:
        if not _is_gathered(node, gathered):
            put(node)
    for node in nodes:  # what only leaves the program
        if node not in ordered:
            put(node)
    return [*ordered]


def _hold_back(nodes: Sequence[Node], gathered: Collection[Value]) -> list[Node]:
    """Return nodes with gathers behind a value that the block before takes."""
    gates: dict[Node, list[Node]] = {}
    held: dict[Value, Value] = {}
    for takers, before in _pair_blocks(nodes, gathered):
        for value in takers:
            user, dependency = before
            held[value] = Value(value.type, value.name)
            gate = Node(After(), (value, dependency), (held[value],), phase=user.phase)
            gates.setdefault(user, []).append(gate)
    ordered: list[Node] = []
    for node in nodes:
        if node.op.is_collective and _is_gathered(node, gathered):
            node = replace(node, inputs=tuple(held.get(value, value) for value in node.inputs))
        ordered += [node, *gates.get(node, ())]
    return ordered


def _pair_blocks(
    nodes: Sequence[Node], gathered: Collection[Value]
) -> Iterator[tuple[list[Value], tuple[Node, Value]]]:
    """Yield what is gathered for a block, with the first user of the block before and its operand."""
    block_of = find_layers([node for node in nodes if not _is_gathered(node, gathered)])
    made = {v for node in nodes if not _is_gathered(node, gathered) for v in node.outputs}
    current: str | None = None
    waiting: list[Value] = []
    before: tuple[Node, Value] | None = None
    latest: tuple[Node, Value] | None = None
    for node in nodes:
        if _is_gathered(node, gathered):
            waiting += node.inputs if node.op.is_collective else ()
            continue
        if not waiting:
            continue
        if block_of(node) != current:
            current, before = block_of(node), latest
            operand = next((value for value in node.inputs if value in made), None)
            latest = latest if operand is None else (node, operand)
        if before is not None:
            yield waiting, before
        waiting = []


def _is_gathered(node: Node, gathered: Collection[Value]) -> bool:
    return any(value in gathered for value in node.outputs)


__all__ = ["gather_late"]
