"""Passes over graphs and programs."""

from __future__ import annotations

from dataclasses import replace

from mithril import ops
from mithril.cost import Target
from mithril.ir import Builder, Graph, Node, Tensors
from mithril.ir.rewrite import rewrite
from mithril.plan import Program
from mithril.transform import eliminate_dead


def fold_negations(graph: Graph, target: Target) -> Graph:
    """Return the graph without negations of negations."""
    made_by = {value: node for node in graph.nodes for value in node.outputs}
    inner: dict[object, object] = {}

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if not isinstance(node.op, ops.Negate):
            return None
        before = made_by.get(node.inputs[0])
        if before is not None and isinstance(before.op, ops.Negate):
            return [inner[before]]
        inner[node] = operands[0]
        return None

    return eliminate_dead(rewrite(graph, visit))


def spell_relu(program: Program, target: Target) -> Program:
    """Return the program with relu(x) as maximum(x, 0)."""

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if not isinstance(node.op, ops.Relu):
            return None
        with builder.at():
            return [ops.maximum(operands[0], builder.constant(0, operands[0].dtype))]

    return replace(program, graph=rewrite(program.graph, visit))
