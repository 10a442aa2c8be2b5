"""Passes over graphs and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mithril.spi import Builder, Graph, Node, PassTarget, Program, Tensor, ops, rewrite


def fold_negations(graph: Graph, target: PassTarget) -> Graph:
    """Return the graph without negations of negations."""
    made_by = {value: node for node in graph.nodes for value in node.outputs}
    operand_of: dict[Node, Tensor] = {}

    def visit(builder: Builder, node: Node, operands: Sequence[Tensor]) -> Sequence[Tensor] | None:
        if not isinstance(node.op, ops.Negate):
            return None
        before = made_by.get(node.inputs[0])
        if before is not None and isinstance(before.op, ops.Negate):
            return [operand_of[before]]
        operand_of[node] = operands[0]
        return None

    return rewrite(graph, visit)


def spell_relu(program: Program, target: PassTarget) -> Program:
    """Return the program with relu(x) as maximum(x, 0)."""

    def visit(builder: Builder, node: Node, operands: Sequence[Tensor]) -> Sequence[Tensor] | None:
        if not isinstance(node.op, ops.Relu):
            return None
        zero = builder.constant(0, operands[0].dtype)
        return builder.apply(ops.Maximum(), operands[0], zero)

    return replace(program, graph=rewrite(program.graph, visit))
