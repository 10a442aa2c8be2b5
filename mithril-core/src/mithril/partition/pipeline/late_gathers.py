"""Puts what is gathered again right before its use: a backward would begin with all of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mithril.ir import Node, Value


def gather_late(nodes: Sequence[Node], gathered: Collection[Value]) -> list[Node]:
    """Return nodes in an order in which what is gathered is so right before its first use.

    Args:
        nodes: of a program that runs without a break, in an order in which they can run.
        gathered: what is gathered again, and what is made of nothing but that.
    """
    waiting = {value: node for node in nodes for value in node.outputs if value in gathered}
    ordered: dict[Node, None] = {}

    def put(node: Node) -> None:
        for value in node.inputs:
            if value in waiting and waiting[value] not in ordered:
                put(waiting[value])
        ordered[node] = None

    for node in nodes:
        if not any(value in gathered for value in node.outputs):
            put(node)
    for node in nodes:  # what only leaves the program
        if node not in ordered:
            put(node)
    return [*ordered]


__all__ = ["gather_late"]
