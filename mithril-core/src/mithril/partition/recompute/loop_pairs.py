"""Pairs of loops: one of the forward, and one of the backward that takes what the first stacks.

Their bodies together are one block, whose answer is that of every iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mithril.ir import Node, Repeat, Value
from mithril.partition.recompute.buffers import FlowReader, Prices, count_around
from mithril.partition.recompute.cuts import Block
from mithril.partition.recompute.residuals import find_stack


@dataclass(frozen=True, slots=True, eq=False)
class LoopPair:
    """A loop of the forward, the loop of the backward that takes its stacks, and their bodies.

    Args:
        forward: the one.
        backward: the other.
        block: all of their body.
        stacked: values of the forward's body that are stacked for the backward.
    """

    forward: Node
    backward: Node
    block: Block
    stacked: frozenset[Value]


def find_pairs(
    early: Sequence[Node], late: Sequence[Node], prices: Prices, kept: Collection[Value]
) -> Iterator[LoopPair]:
    """Yield the loops of the forward with those of the backward that take their stacks."""
    makers = {value: node for node in early for value in node.outputs}
    taken: set[Node] = set()
    for node in late:
        if not isinstance(node.op, Repeat):
            continue
        for value in node.inputs[len(node.inputs) - node.op.stacked :]:
            maker = makers.get(value)
            if maker is None or maker in taken or not isinstance(maker.op, Repeat):
                continue
            if find_stack(maker, value, node.op.count) is not None:
                taken.add(maker)
                yield _read_pair(maker, maker.op, node, node.op, prices, kept)
                break


def _read_pair(
    forward: Node, op: Repeat, backward: Node, inside: Repeat, prices: Prices,
    kept: Collection[Value],
) -> LoopPair:  # fmt: skip
    """Return a forward loop and its backward loop, whose bodies together are one block."""
    same: dict[Value, Value] = {}
    for outer, inner in zip(backward.inputs, inside.body.inputs, strict=True):
        if outer in forward.outputs:
            made = find_stack(forward, outer, inside.count)
            if made is not None:
                same[inner] = made
    body = op.body
    reader = FlowReader(body, body.nodes, prices, (), kept, op.carries, op.count)
    late = [[same.get(v, v) for v in node.inputs] for node in inside.body.nodes]
    late.append([same.get(v, v) for v in inside.body.outputs.values()])
    around = count_around(inside.body, (), inside.body.nodes, prices)
    flow = reader.read(late, [*[(0, 0)] * len(body.nodes), *around, *(around[-1:] or [(0, 0)])])
    block = Block(flow, 0, len(flow.nodes), 0, len(flow.late), frozenset())
    return LoopPair(forward, backward, block, frozenset(same.values()))


__all__ = ["LoopPair", "find_pairs"]
