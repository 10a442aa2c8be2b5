"""Appends what becomes of gradients to the joint graph: the update of a train step.

The gradient of the loss is then no input any more, but one, or the loss scale; gradients are no
outputs, but operands of the update. Semantics are those of one device, as everywhere before the
partitioner, which therefore splits the update like the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mithril.ir import Builder, Graph, Phase, Tensor, Value
from mithril.ir.constant import Constant
from mithril.plan.names import cotangent_name
from mithril.transform.simplify import eliminate_dead


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What becomes of gradients.

    Args:
        graph: from parameters, their gradients (`gradient_of`) and what a step keeps to what it
            keeps next; an input that the joint graph has, as an input or an output, is that one.
        loss: the output whose gradient is one.
        told: outputs of the model that are outputs of the step.
        scale: input of the graph that the gradient of the loss is instead; empty for one.
    """

    graph: Graph
    loss: str
    told: tuple[str, ...]
    scale: str = ""


def append_update(joint: Graph, update: Update) -> Graph:
    """Return the graph of a train step.

    Args:
        joint: outputs and gradients, by `differentiate`.
        update: what becomes of them.
    """
    builder = Builder()
    known: dict[Value, Tensor] = {}
    inputs = {value.name: builder.input(value.type, value.name) for value in _inputs(joint, update)}
    for value in joint.inputs:
        if value.name == cotangent_name(update.loss):
            known[value] = _seed(builder, value, inputs.get(update.scale))
        else:
            known[value] = inputs[value.name]
    _copy(builder, joint, known)
    outputs = {name: known[value] for name, value in joint.outputs.items()}
    for value in update.graph.inputs:
        known[value] = (outputs if value.name in outputs else inputs)[value.name]
    _copy(builder, update.graph, known, Phase.update)
    kept = {name: outputs[name] for name in update.told}
    made = {name: known[value] for name, value in update.graph.outputs.items()}
    return eliminate_dead(builder.build({**kept, **made}))


def _inputs(joint: Graph, update: Update) -> list[Value]:
    """Return the inputs of a step: those of the joint graph, and what only the update takes."""
    found = [value for value in joint.inputs if value.name != cotangent_name(update.loss)]
    known = {value.name for value in found} | set(joint.outputs)
    return found + [value for value in update.graph.inputs if value.name not in known]


def _seed(builder: Builder, value: Value, scale: Tensor | None) -> Tensor:
    """Return the gradient of the loss."""
    with builder.at(phase=Phase.backward):
        if scale is None:
            return builder.apply(Constant(1.0, value.type.dtype))[0]
        return scale.astype(value.type.dtype)


def _copy(
    builder: Builder, graph: Graph, known: dict[Value, Tensor], phase: Phase | None = None
) -> None:
    for node in graph.nodes:
        stamped = node if phase is None else replace(node, phase=phase)
        made = builder.copy(stamped, [known[value] for value in node.inputs])
        known.update(zip(node.outputs, made, strict=True))


__all__ = ["Update", "append_update"]
