"""Checkpoints: computed again in the gradient, and replaced by their bodies before planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mithril.ir import Builder, Checkpoint, Graph, Node, Phase, Sweep, Tensor, Tensors
from mithril.ir.reverse import Visitors
from mithril.ir.rewrite import all_nodes, inline, rewrite, walk
from mithril.ops import after
from mithril.plan.names import gradient_of
from mithril.transform.simplify import eliminate_dead

Differentiate = Callable[[Graph, Sequence[str], Sequence[str]], Graph]


def checkpoint_visitors(differentiate: Differentiate) -> Visitors:
    """Return what visits checkpoints: a checkpoint's body runs again, and then back.

    Args:
        differentiate: returns the joint graph of a body, given its outputs and inputs.
    """

    def visit(node: Node, sweep: Sweep) -> None:
        assert isinstance(node.op, Checkpoint), "nothing else is asked for"
        _visit_checkpoint(node, node.op, sweep, differentiate)

    return {Checkpoint: visit}


def _visit_checkpoint(
    node: Node, op: Checkpoint, sweep: Sweep, differentiate: Differentiate
) -> None:
    cotangents = [sweep.of(value) for value in node.outputs]
    given = [cotangent for cotangent in cotangents if cotangent is not None]
    wanted = [i for i, value in enumerate(node.inputs) if value in sweep.active]
    if not given or not wanted:
        return
    seeded = [c is not None for c in cotangents]
    joint = _backward(op.body, seeded, wanted, differentiate)
    builder = sweep.builder
    with builder.at(scope=node.scope, source=node.source, phase=Phase.backward):
        operands = [after(Tensor(builder, value), given[0]) for value in node.inputs]
        gradients = inline(joint, builder, [*operands, *given])
    for position, gradient in zip(wanted, gradients.values(), strict=True):
        sweep.add(node.inputs[position], gradient)


def _backward(
    body: Graph, seeded: Sequence[bool], wanted: Sequence[int], differentiate: Differentiate
) -> Graph:
    """Return the graph from a body's inputs and cotangents to gradients, all of it backward."""
    outputs = [name for name, is_seeded in zip(body.outputs, seeded, strict=True) if is_seeded]
    names = [body.inputs[position].name for position in wanted]
    joint = differentiate(body, outputs, names)
    gradients = {name: joint.outputs[gradient_of(name)] for name in names}
    again = eliminate_dead(Graph(joint.inputs, joint.nodes, gradients))
    return _in_phase(again, Phase.backward)


def inline_checkpoints(graph: Graph) -> Graph:
    """Return the graph in which the bodies of checkpoints have taken their places."""
    if not any(isinstance(node.op, Checkpoint) for node in all_nodes(graph)):
        return graph

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if not isinstance(node.op, Checkpoint):
            return None
        body = _in_phase(inline_checkpoints(node.op.body), node.phase)
        return tuple(inline(body, builder, operands).values())

    return rewrite(graph, visit)


def list_checkpointed(graph: Graph) -> Iterator[tuple[Graph, int]]:
    """Yield what checkpoints run, and how often."""
    for node, times in walk(graph):
        if isinstance(node.op, Checkpoint):
            yield node.op.body, times


def _in_phase(graph: Graph, phase: Phase) -> Graph:
    nodes = tuple(replace(node, phase=phase) for node in graph.nodes)
    return Graph(graph.inputs, nodes, graph.outputs)
