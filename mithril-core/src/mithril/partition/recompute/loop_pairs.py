"""Pairs of loops: one of the forward, and one of the backward that takes what the first stacks.

Their bodies together are one block, whose answer is that of every iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mithril.cost.liveness import Liveness
from mithril.ir import Graph, Node, Value
from mithril.partition.recompute.blocks import Block
from mithril.partition.recompute.buffers import FlowReader, Prices, read_backward
from mithril.partition.recompute.residuals import Stack, find_stacks, match_inputs
from mithril.partition.recompute.twins import find_twins


@dataclass(frozen=True, slots=True, eq=False)
class LoopPair:
    """A loop of the forward, the loop of the backward that takes its stacks, and their bodies.

    Args:
        forward: the one.
        backward: the other.
        block: all of their body.
        stacks: results of the one that the other takes slice by slice, and values of which body
            these are stacks.
    """

    forward: Node
    backward: Node
    block: Block
    stacks: Mapping[Value, Value]

    def count_again(self) -> float:
        """Return the seconds that a step takes longer if the whole loop runs twice.

        What its forward runs for the backward alone, it runs once then as well.
        """
        flow, spare = self.block.flow, set(self.block.flow.spare)
        return sum(seconds for at, seconds in enumerate(flow.seconds) if at not in spare)


@dataclass(frozen=True, slots=True, eq=False)
class Iterations:
    """Reads off what iterations of loops take.

    Args:
        liveness: reads memory off their bodies.
    """

    liveness: Liveness

    def measure_once(self, node: Node) -> int:
        """Return what an iteration of a loop takes, without what the one before it has made."""
        return self.liveness.measure_body(node, node.op.bodies[0]).peak

    def measure_forward(self, pair: LoopPair, kept: Collection[int]) -> int:
        """Return what an iteration of a forward loop takes that stacks some buffers."""
        op, buffers = pair.forward.op, pair.block.flow.buffers
        body = op.bodies[0]
        outputs, stacked = list(body.outputs.values()), set(pair.stacks.values())
        others = [v for v in outputs if v not in stacked]
        more = [buffers[number].value for number in sorted(kept)]
        made = dict.fromkeys([*others[len(op.carries) :], *more])
        values = [*outputs[: len(op.carries)], *made]
        named = {str(position): value for position, value in enumerate(values)}
        smaller = Graph(body.inputs, body.nodes, named)
        return self.measure(pair.forward, smaller)

    def measure(self, node: Node, body: Graph) -> int:
        """Return what an iteration takes, with what the one before has made for stacks."""
        memory, carried = self.liveness.measure_body(node, body), len(node.op.carries)
        if self.liveness.execution.lays_out or node.op.iterations == 1:
            return memory.peak
        found, carries = memory.peak, set(memory.results[:carried])
        for number in dict.fromkeys(memory.results[carried:]):
            if number in memory.made and number not in carries:
                found += memory.made[number].bytes
            elif number < carried:
                found += body.inputs[number].type.nbytes
        return found


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
            own = [stack for stack in stacks if stack.forward is forward]
            yield _read_pair(node, own, makers, prices, kept)


def _read_pair(
    backward: Node,
    stacks: Sequence[Stack],
    makers: Mapping[Value, Node],
    prices: Prices,
    kept: Collection[Value],
) -> LoopPair:
    """Return a backward loop and the forward loop of its stacks, whose bodies are one block."""
    forward, (inside,) = stacks[0].forward, backward.op.bodies
    (body,) = forward.op.bodies
    same = {stack.slice: stack.made for stack in stacks}
    known = {new: old for old, new in match_inputs(forward, backward, makers)}
    reader = FlowReader(
        body, body.nodes, prices, (), kept, {}, forward.op.carries, forward.op.iterations
    )
    late = [[same.get(v, v) for v in node.inputs] for node in inside.nodes]
    late.append([same.get(v, v) for v in inside.outputs.values()])
    of = read_backward(inside, (), inside.nodes, prices)
    around = [*[(0, 0)] * len(body.nodes), *of.around, *(of.around[-1:] or [(0, 0)])]
    outputs, stacked = list(body.outputs.values()), set(same.values())
    leaving = [
        v for at, v in enumerate(outputs) if at < len(forward.op.carries) or v not in stacked
    ]
    twins = find_twins(body.nodes, inside.nodes, known.get, of.made)
    flow = reader.read(late, around, leaving, twins)
    block = Block(flow, 0, len(flow.nodes), 0, len(flow.late), frozenset())
    return LoopPair(forward, backward, block, {stack.value: stack.made for stack in stacks})


__all__ = ["Iterations", "LoopPair", "find_pairs"]
