"""Gathers updates of optimisers into calls over many tensors, before a program is emitted.

Each parameter has an update of its own in a plan. Those with the same numbers, dtypes, learning
rate and count become one node, which stands where its first result is needed: PyTorch's kernel
takes lists, and on a GPU starts a few times instead of once a parameter. Those whose gradients
arrive by different collectives stay apart, in the order of these, so that none waits for another's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import DType, Graph, Node, Op, Phase, Types, Value, join_equal_scalars, map_bodies
from mithril.spi.ops import AdamWStep, Wait, collective_of

from mithril_torch.program.written_op import WrittenOp

_Key = tuple[int, Op, tuple[DType, ...], tuple[Value, ...]]
"""What updates have in common that are one: first, when their gradients arrive."""


@dataclass(frozen=True)
class AdamWSteps(WrittenOp):
    """Updates of AdamW: all parameters, gradients, first and second moments, rate, count."""

    name: ClassVar[str] = "adamw_steps"
    step: AdamWStep

    def infer(self, inputs: Types) -> Types:
        """Return the types of parameters, first and second moments."""
        count = (len(inputs) - 2) // 4
        return [*inputs[:count], *inputs[2 * count : 4 * count]]

    @property
    def own(self) -> tuple[bool, bool, bool]:
        """Whether parameters, first and second moments may be written over."""
        first, second, third = (operand in self.step.in_place for operand in (0, 2, 3))
        return first, second, third


def gather_updates(graph: Graph) -> Graph:
    """Return a graph that computes the same with one node for many updates, in loops too."""
    nodes = tuple(map_bodies(node, gather_updates) for node in graph.nodes)
    if any(isinstance(node.op, AdamWStep) for node in nodes):
        joined = join_equal_scalars(Graph(graph.inputs, nodes, graph.outputs))
        nodes = _keep_what_is_read_later(list(_gather(joined.nodes)))
    return Graph(graph.inputs, nodes, graph.outputs)


def _gather(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes in order; an update waits until somebody reads a result of its like."""
    waiting: dict[_Key, list[Node]] = {}
    made: dict[Value, _Key] = {}
    arrivals = _list_arrivals(nodes)
    for node in nodes:
        for key in dict.fromkeys(made[value] for value in node.inputs if value in made):
            yield _join(waiting.pop(key))
            made = {value: other for value, other in made.items() if other != key}
        if not isinstance(node.op, AdamWStep):
            yield node
            continue
        dtypes, arrival = (
            tuple(x.type.dtype for x in node.inputs[:4]),
            arrivals.get(node.inputs[1], -1),
        )
        key = arrival, node.op, dtypes, node.inputs[4:]
        waiting.setdefault(key, []).append(node)
        made |= dict.fromkeys(node.outputs, key)
    for _, found in sorted(waiting.items(), key=lambda item: item[0][0]):
        yield _join(found)


def _list_arrivals(nodes: Sequence[Node]) -> dict[Value, int]:
    """Return by value the position of the last collective that only updates wait for, or -1."""
    awaited: set[Value] = set()
    for node in reversed(nodes):
        passes_on = node.op.is_view or isinstance(node.op, Wait)
        if node.phase != Phase.update and (not passes_on or awaited.intersection(node.outputs)):
            awaited.update(node.inputs)
    found: dict[Value, int] = {}
    for position, node in enumerate(nodes):
        arrival = max((found.get(value, -1) for value in node.inputs), default=-1)
        for value in node.outputs:
            is_last = collective_of(node.op) is not None and value not in awaited
            found[value] = position if is_last else arrival
    return found


def _join(nodes: Sequence[Node]) -> Node:
    """Return one node for several updates."""
    last = nodes[-1]
    assert isinstance(last.op, AdamWStep)
    operands = zip(*(node.inputs[:4] for node in nodes), strict=True)
    results = zip(*(node.outputs for node in nodes), strict=True)
    scopes = {node.scope for node in nodes}
    return replace(
        last,
        op=AdamWSteps(last.op),
        inputs=(*(value for values in operands for value in values), *last.inputs[4:]),
        outputs=tuple(value for values in results for value in values),
        scope=last.scope if len(scopes) == 1 else "",
    )


def _keep_what_is_read_later(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return nodes of which none writes over what a later one reads: some stand elsewhere now."""
    later: set[Value] = set()
    found = []
    for node in reversed(nodes):
        if isinstance(node.op, AdamWSteps):
            node = replace(node, op=AdamWSteps(_restrict(node, later)))
        later.update(node.inputs)
        found.append(node)
    return tuple(reversed(found))


def _restrict(node: Node, later: set[Value]) -> AdamWStep:
    assert isinstance(node.op, AdamWSteps)
    step, count = node.op.step, (len(node.inputs) - 2) // 4
    read_twice = {value for value, times in Counter(node.inputs).items() if times > 1}
    kept = [
        operand
        for operand in step.in_place
        if (later | read_twice).isdisjoint(node.inputs[operand * count : (operand + 1) * count])
    ]
    return replace(step, in_place=tuple(kept))
