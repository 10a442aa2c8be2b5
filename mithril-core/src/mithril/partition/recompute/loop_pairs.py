"""Pairs of loops: one of the forward, and one of the backward that takes what the first stacks.

Their bodies together are one block, whose answer is that of every iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mithril.ir import Node, Value
from mithril.partition.recompute.blocks import Block
from mithril.partition.recompute.buffers import FlowReader, Prices, count_around
from mithril.partition.recompute.residuals import Stack, find_stacks


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
        stacks = [stack for stack in find_stacks(node, makers) if stack.forward not in taken]
        if stacks:
            forward = stacks[0].forward
            taken.add(forward)
            yield _read_pair(node, [s for s in stacks if s.forward is forward], prices, kept)


def _read_pair(
    backward: Node, stacks: Sequence[Stack], prices: Prices, kept: Collection[Value]
) -> LoopPair:
    """Return a backward loop and the forward loop of its stacks, whose bodies are one block."""
    forward, (inside,) = stacks[0].forward, backward.op.bodies
    (body,) = forward.op.bodies
    same = {stack.slice: stack.made for stack in stacks}
    reader = FlowReader(
        body, body.nodes, prices, (), kept, forward.op.carries, forward.op.iterations
    )
    late = [[same.get(v, v) for v in node.inputs] for node in inside.nodes]
    late.append([same.get(v, v) for v in inside.outputs.values()])
    around = count_around(inside, (), inside.nodes, prices)
    flow = reader.read(late, [*[(0, 0)] * len(body.nodes), *around, *(around[-1:] or [(0, 0)])])
    block = Block(flow, 0, len(flow.nodes), 0, len(flow.late), frozenset())
    return LoopPair(forward, backward, block, frozenset(same.values()))


__all__ = ["LoopPair", "find_pairs"]
