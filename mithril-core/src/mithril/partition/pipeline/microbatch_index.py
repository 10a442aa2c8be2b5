"""What in a local program depends on where it runs, and on which micro-batch it runs for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TypeGuard

from mithril.ir import Builder, Graph, Node, Op, Tensor, Tensors, Value
from mithril.ir.rewrite import Visit, all_nodes, inline
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
        for inner in all_nodes(node):
            if isinstance(inner.op, AxisIndex):
                axes |= frozenset(inner.op.axes)
        if isinstance(node.op, AllReduce | AllGather):
            axes -= frozenset(node.op.axes)
        elif isinstance(node.op, Collective):
            axes |= frozenset(node.op.axes)
        found.update(dict.fromkeys(node.outputs, axes))
    return found


def reads_microbatch_index(node: Node) -> bool:
    """Whether a node, or one of its bodies, asks which micro-batch it runs for."""
    return any(_is_index(inner.op) for inner in all_nodes(node))


def bind_microbatch_index(
    nodes: Sequence[Node], count: int, mesh: Mesh
) -> tuple[list[Node], Value]:
    """Return nodes that take the micro-batch's number as an input, and that input."""
    number = Value(TensorType((), DType.int32), NUMBER)
    sizes = {**mesh.sizes, MICRO: count}
    bound: list[Node] = []
    renamed: dict[Value, Value] = {}
    for node in nodes:
        inputs = tuple(renamed.get(value, value) for value in node.inputs)
        node = node if inputs == node.inputs else replace(node, inputs=inputs)
        if reads_microbatch_index(node):
            made, results = _bind(node, number, sizes)
            bound += made
            renamed |= {old: new for old, new in results.items() if new is number}
        else:
            bound.append(node)
    return bound, number


def _bind(
    node: Node, number: Value, sizes: Mapping[str, int]
) -> tuple[list[Node], Mapping[Value, Value]]:
    """Return nodes that take the place of one that asks for the number, and their results."""
    given = tuple(dict.fromkeys(node.inputs))
    alone = Graph(given, (node,), {str(i): value for i, value in enumerate(node.outputs)})
    builder = Builder.extending(Graph((number, *given), (), {}))
    visit = _put_number(lambda inner: inner.own(Tensor(builder, number)), sizes)
    made = inline(alone, builder, [Tensor(builder, value) for value in given], visit)
    olds = {made[name].value: old for name, old in alone.outputs.items()}
    nodes = [
        replace(new, outputs=tuple(olds.get(value, value) for value in new.outputs))
        for new in builder.build({}).nodes
    ]
    return nodes, {old: new for new, old in olds.items()}


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
    made = {value for node in nodes for value in node.outputs}
    given = tuple(dict.fromkeys(v for node in nodes for v in node.inputs if v not in made))
    graph = Graph(given, tuple(nodes), {"term": value})
    operands = [Tensor(builder, value) for value in given]
    terms = [
        inline(graph, builder, operands, _put_number(partial(_constant, number), sizes))["term"]
        for number in range(sizes[MICRO])
    ]
    return reduce(REDUCTIONS[reduction], terms)


def _constant(number: int, builder: Builder) -> Tensor:
    return builder.constant(number, DType.int32)


def _put_number(number: Callable[[Builder], Tensor], sizes: Mapping[str, int]) -> Visit:
    """Return a visit that puts a number in the place of the micro-batch's index.

    Args:
        number: returns it as a tensor of a builder.
        sizes: of the axes.
    """

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if not _is_index(node.op):
            return None
        return [_index(builder, node.op.axes, number(builder), sizes)]

    return visit


def _is_index(op: Op) -> TypeGuard[AxisIndex]:
    return isinstance(op, AxisIndex) and MICRO in op.axes


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
