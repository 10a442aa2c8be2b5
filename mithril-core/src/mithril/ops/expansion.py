"""Gradients of fused ops by way of their expansions.

A fused op has a fast gradient op for what is asked for all the time. Everything else (second
gradients, gradients through saved statistics, through a mask) is differentiated here: the op is
written out in smaller ops, one reverse sweep goes over them, and what it needs of both becomes part
of the graph that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mithril.errors import GraphError
from mithril.ir.constant import Constant
from mithril.ir.graph import Node, Value
from mithril.ir.op import Cotangents, Op, Tensors
from mithril.ir.reverse import Sweep, active_values
from mithril.ir.tensor import Builder, Tensor


def gradient_by_expansion(op: Op, inputs: Tensors, cotangents: Cotangents) -> list[Tensor | None]:
    """Return the cotangents of an op's operands by differentiating its expansion.

    Args:
        op: an op with an expansion.
        inputs: its operands.
        cotangents: one for each result; None means zero.

    Returns:
        One for each operand; None where none flows.

    Raises:
        GraphError: the op has no expansion.
    """
    inner = Builder()  # operands of its own, so that one tensor passed twice is two of them
    operands = [inner.input(x.type, f"x{i}") for i, x in enumerate(inputs)]
    results = op.expand(operands)
    if results is None:
        raise GraphError(f"op '{op.name}' has no expansion; give it one to differentiate it")
    graph = inner.build({})
    sweep = Sweep(inner, active_values(graph, [x.value for x in operands if x.dtype.is_float]))
    outside: dict[Value, Tensor] = {
        x.value: outer for x, outer in zip(operands, inputs, strict=True)
    }
    for i, (result, cotangent) in enumerate(zip(results, cotangents, strict=True)):
        if cotangent is not None:
            seed = inner.input(cotangent.type, f"g{i}")
            outside[seed.value] = cotangent
            sweep.add(result.value, seed)
    for node in reversed(graph.nodes):
        sweep.visit(node)
    found = [sweep.of(x.value) for x in operands]
    wanted = [x.value for x in found if x is not None]
    for node in _find_needed(inner.build({}).nodes, wanted):
        _copy(node, inputs[0].builder, outside)
    return [None if x is None else outside[x.value] for x in found]


def gradient_of_fused(
    op: Op,
    inputs: Tensors,
    cotangents: Cotangents,
    fused: Callable[[Tensor], Cotangents],
) -> Cotangents:
    """Return the cotangents of an op whose results after the first are saved statistics.

    Args:
        op: the op.
        inputs: its operands.
        cotangents: one for each result; None means zero.
        fused: from the cotangent of the first result to those of the operands, by a gradient op.
    """
    first, *rest = cotangents
    if all(c is None for c in rest):
        return fused(first) if first is not None else [None] * len(inputs)
    others = gradient_by_expansion(op, inputs, [None, *rest])
    if first is None:
        return others
    return [_sum(x, y) for x, y in zip(fused(first), others, strict=True)]


def _sum(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    if x is None or y is None:
        return y if x is None else x
    return x + y


def _find_needed(nodes: Sequence[Node], wanted: Sequence[Value]) -> list[Node]:
    """Return the nodes that lead to wanted values, in order."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def _copy(node: Node, builder: Builder, made: dict[Value, Tensor]) -> None:
    """Append a node of another builder, under the stamp this one has now."""
    if isinstance(node.op, Constant):
        made[node.outputs[0]] = builder.constant(node.op.value, node.op.dtype)
        return
    results = builder.apply(node.op, *(made[value] for value in node.inputs))
    made.update(zip(node.outputs, results, strict=True))


__all__: list[str] = []
