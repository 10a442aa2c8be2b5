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
    held: dict[tuple[Node, Value], Value] = {}
    for gather, user, dependency in _pair_with_earlier(nodes, gathered):
        for value in gather.inputs:
            if value not in gathered:  # else it waits already: it was gathered over another axis
                late = held[gather, value] = Value(value.type, value.name)
                gate = Node(After(), (value, dependency), (late,), phase=user.phase)
                gates.setdefault(user, []).append(gate)
    ordered: list[Node] = []
    for node in nodes:
        inputs = tuple(held.get((node, value), value) for value in node.inputs)
        ordered.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        ordered += gates.get(node, ())
    return ordered


def _pair_with_earlier(
    nodes: Sequence[Node], gathered: Collection[Value]
) -> Iterator[tuple[Node, Node, Value]]:
    """Yield gathers with the node of the block before that first uses a gather, and its operand.

    Args:
        nodes: with each gather right before its first use.
        gathered: as of `gather_late`.
    """
    others = [node for node in nodes if not _is_gathered(node, gathered)]
    block_of, made = find_layers(others), {value for node in others for value in node.outputs}
    current: str | None = None
    earlier: tuple[Node, Value] | None = None
    latest: tuple[Node, Value] | None = None
    waiting: list[Node] = []
    for node in nodes:
        if _is_gathered(node, gathered):
            waiting += [node] if node.op.is_collective else []
        elif waiting:
            if block_of(node) != current:
                current, earlier = block_of(node), latest
                operand = next((value for value in node.inputs if value in made), None)
                latest = latest if operand is None else (node, operand)
            if earlier is not None:
                yield from ((gather, *earlier) for gather in waiting)
            waiting = []


def _is_gathered(node: Node, gathered: Collection[Value]) -> bool:
    return any(value in gathered for value in node.outputs)


__all__ = ["gather_late"]
