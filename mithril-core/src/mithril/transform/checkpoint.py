"""Checkpoints: computed again in the gradient, and replaced by their bodies before planning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mithril.ir import Builder, Checkpoint, Graph, Phase, Repeat, Sweep, Tensor, Value
from mithril.ir.graph import Node
from mithril.ir.repeat import all_nodes
from mithril.ops import after
from mithril.transform.inline import inline
from mithril.transform.simplify import eliminate_dead


def visit_checkpoint(node: Node, op: Checkpoint, sweep: Sweep) -> None:
    """Pass the cotangents of a checkpoint's results on: run its body again, and then back."""
    cotangents = [sweep.of(value) for value in node.outputs]
    given = [cotangent for cotangent in cotangents if cotangent is not None]
    wanted = [i for i, value in enumerate(node.inputs) if value in sweep.active]
    if not given or not wanted:
        return
    seeded = [c is not None for c in cotangents]
    joint = _backward(op.body, seeded, wanted)
    builder = sweep.builder
    with builder.at(scope=node.scope, source=node.source, phase=Phase.backward):
        operands = [after(Tensor(builder, value), given[0]) for value in node.inputs]
        gradients = inline(joint, builder, [*operands, *given])
    for position, gradient in zip(wanted, gradients.values(), strict=True):
        sweep.add(node.inputs[position], gradient)


def _backward(body: Graph, seeded: Sequence[bool], wanted: Sequence[int]) -> Graph:
    """Return the graph from a body's inputs and cotangents to gradients, all of it backward."""
    from mithril.transform.differentiate import differentiate, gradient_of

    outputs = [name for name, is_seeded in zip(body.outputs, seeded, strict=True) if is_seeded]
    names = [body.inputs[position].name for position in wanted]
    joint = differentiate(body, outputs, names)
    gradients = {name: joint.outputs[gradient_of(name)] for name in names}
    again = eliminate_dead(Graph(joint.inputs, joint.nodes, gradients))
    nodes = tuple(replace(node, phase=Phase.backward) for node in again.nodes)
    return Graph(again.inputs, nodes, again.outputs)


def inline_checkpoints(graph: Graph) -> Graph:
    """Return the graph in which the bodies of checkpoints have taken their places."""
    if not any(isinstance(node.op, Checkpoint) for node in all_nodes(graph)):
        return graph
    builder = Builder()
    made: dict[Value, Tensor] = {v: builder.input(v.type, v.name) for v in graph.inputs}
    for node in graph.nodes:
        operands = [made[value] for value in node.inputs]
        if isinstance(node.op, Checkpoint):
            inner = inline_checkpoints(node.op.body)
            results = tuple(inline(inner, builder, operands, phase=node.phase).values())
        elif isinstance(node.op, Repeat):
            body = replace(node.op, body=inline_checkpoints(node.op.body))
            results = builder.copy(replace(node, op=body), operands)
        else:
            results = builder.copy(node, operands)
        for old, new in zip(node.outputs, results, strict=True):
            made[old] = builder.named(new, old.name)
    return builder.build({name: made[value] for name, value in graph.outputs.items()})
