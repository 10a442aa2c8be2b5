"""Reverse-mode differentiation of a graph, in one sweep.

The result is the joint graph: the forward nodes, unchanged, then the backward nodes. A gradient
enters through one new input per differentiated output (`cotangent_name(name)`) and leaves through
one new output per requested input (`gradient_of(name)`). Semantics are those of one device.
"""

from __future__ import annotations

from collections.abc import Sequence

from mithril.errors import GraphError, listing
from mithril.ir import Builder, Graph, Node, Op, Phase, Sweep, Tensor, Tensors, Value, active_values
from mithril.ir.rewrite import all_nodes, rewrite
from mithril.ops import cast
from mithril.plan.names import cotangent_name, gradient_of
from mithril.transform.checkpoint import checkpoint_visitors
from mithril.transform.repeat import cotangent_or_zeros, visit, with_residuals
from mithril.transform.simplify import eliminate_dead
from mithril.types import DType


def differentiate(graph: Graph, outputs: Sequence[str], inputs: Sequence[str]) -> Graph:
    """Return the joint graph of outputs and gradients.

    Args:
        graph: the forward graph.
        outputs: names of the outputs whose gradients are given; the others count as zero.
        inputs: names of the inputs whose gradients are wanted.

    Raises:
        GraphError: an output or a wanted input is not of a float dtype.
    """
    if any(map(_is_of_loops, all_nodes(graph))):
        graph = rewrite(graph, _open_loops)
    _check_float({name: graph.outputs[name] for name in outputs}, "output")
    wanted = {name: graph.input(name) for name in inputs}
    _check_float(wanted, "input")
    active = active_values(graph, wanted.values())
    visitors = checkpoint_visitors(differentiate)
    graph, loops = with_residuals(graph, active, visitors)
    builder = Builder.extending(graph)
    sweep = Sweep(builder, active, visitors)
    with builder.at(phase=Phase.backward):
        for name in outputs:
            value = graph.outputs[name]
            sweep.add(value, builder.input(value.type, cotangent_name(name)))
    for node in reversed(graph.nodes):
        visit(node, sweep, loops)
    results = {name: Tensor(builder, value) for name, value in graph.outputs.items()}
    for name, value in wanted.items():
        with builder.at(phase=Phase.backward):
            gradient = cotangent_or_zeros(sweep, value)
        results[gradient_of(name)] = builder.assign_name(gradient, gradient_of(name))
    return eliminate_dead(builder.build(results))


def cast_gradients(joint: Graph, names: Sequence[str], dtype: DType) -> Graph:
    """Return the joint graph with gradients of some inputs in a dtype.

    Args:
        joint: by `differentiate`.
        names: of the inputs.
        dtype: of floats.
    """
    builder = Builder.extending(joint)
    wanted = {gradient_of(name) for name in names}
    results = {name: Tensor(builder, value) for name, value in joint.outputs.items()}
    with builder.at(phase=Phase.backward):
        for name in wanted & results.keys():
            results[name] = builder.assign_name(cast(results[name], dtype), name)
    return builder.build(results)


def _is_of_loops(node: Node) -> bool:
    """Whether an op has an expansion and no gradient: loops, which are differentiated here."""
    op = type(node.op)
    return op.gradient is Op.gradient and op.expand is not Op.expand


def _open_loops(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
    return node.op.expand(operands) if _is_of_loops(node) else None


def _check_float(values: dict[str, Value], what: str) -> None:
    wrong = [name for name, value in values.items() if not value.type.dtype.is_float]
    if wrong:
        several, has = ("", "has") if len(wrong) == 1 else ("s", "have")
        raise GraphError(
            f"{what}{several} {listing(wrong)} {has} dtype {values[wrong[0]].type.dtype}; "
            f"gradients need a float dtype; cast to one, or leave it out of what is differentiated"
        )
