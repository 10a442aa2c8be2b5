"""What in a local program depends on where it runs, and on which micro-batch it runs for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mithril.ir import Builder, Graph, Node, Repeat, Tensor, Value
from mithril.ir.repeat import all_nodes
from mithril.mesh import MICRO, Mesh, carry
from mithril.ops import add, maximum, minimum
from mithril.ops.collective import AllGather, AllReduce, AxisIndex, Collective
from mithril.plan import Program
from mithril.types import DType, TensorType

NUMBER = "micro-batch number"
"""Name of the input that tells a stage program which micro-batch it runs for."""


def varying(program: Program) -> dict[Value, frozenset[str]]:
    """Return the mesh axes each value of a program may differ along, or more of them."""
    found: dict[Value, frozenset[str]] = {}
    for port, value in zip(program.inputs, program.graph.inputs, strict=True):
        sharding = carry(port.sharding, program.mesh)
        found[value] = frozenset((*sharding.split_axes, *(axis for axis, _ in sharding.partial)))
    for node in program.graph.nodes:
        axes = frozenset().union(*(found[value] for value in node.inputs))
        for inner in all_nodes(Graph((), (node,), {})):
            if isinstance(inner.op, AxisIndex):
                axes |= frozenset(inner.op.axes)
        if isinstance(node.op, AllReduce | AllGather):
            axes -= frozenset(node.op.axes)
        elif isinstance(node.op, Collective):
            axes |= frozenset(node.op.axes)
        found.update(dict.fromkeys(node.outputs, axes))
    return found


def bind_microbatch_index(
    nodes: Sequence[Node], count: int, mesh: Mesh
) -> tuple[list[Node], Value]:
    """Return nodes that take the micro-batch's number as an input, and that input."""
    number = Value(TensorType((), DType.int32), NUMBER)
    bound, _ = _bind(nodes, number, {**mesh.sizes, MICRO: count})
    return bound, number


def _bind(
    nodes: Sequence[Node], number: Value, sizes: Mapping[str, int]
) -> tuple[list[Node], Mapping[Value, Value]]:
    """Return the nodes, and what has become of values that were the number."""
    bound: list[Node] = []
    renamed: dict[Value, Value] = {}
    for node in nodes:
        inputs = tuple(renamed.get(value, value) for value in node.inputs)
        node = node if inputs == node.inputs else replace(node, inputs=inputs)
        if isinstance(node.op, Repeat) and _asks(node.op.body):
            bound.append(_bind_loop(node, node.op, number, sizes))
        elif not isinstance(node.op, AxisIndex) or MICRO not in node.op.axes:
            bound.append(node)
        elif node.op.axes == (MICRO,):
            renamed[node.outputs[0]] = number
        else:
            builder = Builder.extending(Graph((number,), (), {}))
            index = _index(builder, node.op.axes, Tensor(builder, number), sizes)
            *first, last = builder.build({"index": index}).nodes
            bound += [*first, replace(last, outputs=node.outputs)]
    return bound, renamed


REDUCTIONS = {"sum": add, "max": maximum, "min": minimum}
"""How what two micro-batches give is put together, by reduction."""


def at_once(
    builder: Builder,
    nodes: Sequence[Node],
    value: Value,
    reduction: str,
    sizes: Mapping[str, int],
) -> Tensor:
    """Return the reduction of a value over all micro-batches, computed in one go.

    Args:
        builder: one that has the inputs of the nodes.
        nodes: what makes the value.
        value: what is reduced.
        reduction: one of `REDUCTIONS`.
        sizes: of the axes, that of time among them.
    """
    total = None
    for number in range(sizes[MICRO]):
        made: dict[Value, Tensor] = {}
        for node in nodes:
            operands = [made[v] if v in made else Tensor(builder, v) for v in node.inputs]
            if isinstance(node.op, AxisIndex) and MICRO in node.op.axes:
                now = builder.constant(number, DType.int32)
                results: Sequence[Tensor] = [_index(builder, node.op.axes, now, sizes)]
            else:
                results = builder.copy(node, operands)
            made.update(zip(node.outputs, results, strict=True))
        total = made[value] if total is None else REDUCTIONS[reduction](total, made[value])
    assert total is not None, "there is a micro-batch"
    return total


def _asks(body: Graph) -> bool:
    ops = (node.op for node in all_nodes(body))
    return any(isinstance(op, AxisIndex) and MICRO in op.axes for op in ops)


def _bind_loop(node: Node, op: Repeat, number: Value, sizes: Mapping[str, int]) -> Node:
    """Return a loop that gets the number as one more operand, the same in every iteration."""
    inside, at = Value(number.type, NUMBER), len(node.inputs) - op.stacked
    nodes, renamed = _bind(op.body.nodes, inside, sizes)
    body = Graph(
        (*op.body.inputs[:at], inside, *op.body.inputs[at:]),
        tuple(nodes),
        {name: renamed.get(value, value) for name, value in op.body.outputs.items()},
    )
    inputs = (*node.inputs[:at], number, *node.inputs[at:])
    return replace(node, op=replace(op, body=body), inputs=inputs)


def _index(
    builder: Builder, axes: Sequence[str], number: Tensor, sizes: Mapping[str, int]
) -> Tensor:
    """Return the row-major index over axes of which one is time."""
    at = axes.index(MICRO)
    index = number
    if axes[:at]:
        (before,) = builder.apply(AxisIndex(tuple(axes[:at])))
        index = before * sizes[MICRO] + number
    if axes[at + 1 :]:
        (after,) = builder.apply(AxisIndex(tuple(axes[at + 1 :])))
        index = index * math.prod(sizes[axis] for axis in axes[at + 1 :]) + after
    return index
