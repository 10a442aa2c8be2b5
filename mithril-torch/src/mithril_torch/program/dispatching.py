"""Dispatches rows to experts in the order in which experts multiply them.

A mixture of experts lays rows out group by group, and its products want them expert by expert. What
turns one into the other is a copy of all rows; that of their ids is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.spi import Graph, Node, Types, map_bodies
from mithril.spi.ops import MoeDispatch, Reshape, Transpose

from mithril_torch.program.written_op import WrittenOp

BY_EXPERT = (1, 0, 2, 3)
"""The order of dimensions that brings experts before groups."""


@dataclass(frozen=True)
class DispatchByExpert(WrittenOp):
    """Rows of x by id, [experts, groups, capacity, features]; operands (x, ids).

    Args:
        experts: how many share the ids of a group.
    """

    name: ClassVar[str] = "dispatch_by_expert"
    experts: int

    def infer(self, inputs: Types) -> Types:
        """Return the type of the rows."""
        x, ids = inputs
        groups, slots = ids.shape
        return [x.with_shape((self.experts, groups, slots // self.experts, x.shape[-1]))]


def dispatch_by_expert(graph: Graph) -> Graph:
    """Return a graph that computes the same and lays rows out for experts at once, in loops too."""
    uses, outputs = graph.uses(), set(graph.outputs.values())
    alone = {value for value, readers in uses.items() if len(readers) == 1} - outputs
    makers = graph.producers()

    def find_maker(node: Node, op: type) -> Node | None:
        """Return what makes the first operand of a node for it alone, if that is such an op."""
        maker = makers.get(node.inputs[0])
        return maker if maker and isinstance(maker.op, op) and node.inputs[0] in alone else None

    found: dict[Node, Node | None] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Transpose) or node.op.order != BY_EXPERT:
            continue
        reshaped = find_maker(node, Reshape)
        dispatched = reshaped and find_maker(reshaped, MoeDispatch)
        if reshaped and dispatched and _cuts_slots(reshaped):
            op = DispatchByExpert(reshaped.outputs[0].type.shape[1])
            found |= {reshaped: None, dispatched: None}
            found[node] = replace(
                dispatched, op=op, inputs=dispatched.inputs[:2], outputs=node.outputs
            )
    kept = (made for node in graph.nodes if (made := found.get(node, node)) is not None)
    nodes = tuple(map_bodies(node, dispatch_by_expert) for node in kept)
    return Graph(graph.inputs, nodes, graph.outputs)


def _cuts_slots(node: Node) -> bool:
    """Return whether a reshape cuts the slots of each group into those of its experts."""
    (groups, slots, features), made = node.inputs[0].type.shape, node.outputs[0].type.shape
    return (made[0], made[1] * made[2], made[3]) == (groups, slots, features)


__all__ = ["DispatchByExpert", "dispatch_by_expert"]
