"""Reductions of 16-bit floats over devices are taken in float32, and rounded once.

Libraries that carry data between devices round after every addition, so that a sum of many small
gradients stops growing, and may come out differently on devices that add in another order. Where
the target is one of these, such a sum is exchanged in float32: the plan has the cast, the bytes and
the price. So it is with maxima where a library cannot compare 16-bit floats as they are wanted.
"""

from __future__ import annotations

from dataclasses import replace

from mithril.cost import Hardware
from mithril.cost.pairs import price_cause
from mithril.ir import Builder, Cause, Node
from mithril.ir.op import Tensors
from mithril.ir.rewrite import all_nodes, rewrite
from mithril.mesh import MICRO, Mesh
from mithril.ops.collective import AllReduce, ReduceScatter
from mithril.ops.elementwise import cast
from mithril.plan import Execution, Program
from mithril.types import DType


def widen_reductions(program: Program, hardware: Hardware) -> Program:
    """Return the program with its reductions of 16-bit floats over devices in float32.

    Args:
        program: a local program.
        hardware: the profile that prices them, and says which devices take in 16 bits.
    """
    execution = hardware.execution
    if not any(_is_wanted(node, execution) for node in all_nodes(program.graph)):
        return program

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if not _is_wanted(node, execution):
            return None
        with builder.at():
            wide = [cast(x, DType.float32) for x in operands]
        with builder.at(cause=_price(node, wide, program.mesh, hardware)):
            sums = builder.apply(node.op, *wide)
        with builder.at():
            return [cast(y, x.dtype) for x, y in zip(operands, sums, strict=True)]

    return replace(program, graph=rewrite(program.graph, visit))


def _is_wanted(node: Node, execution: Execution) -> bool:
    op = node.op
    if not isinstance(op, AllReduce | ReduceScatter) or MICRO in op.axes:
        return False
    if node.cause is not None and node.cause.compressed:
        return False  # these bytes are what was asked for
    return any(execution.widens(op.name, op.reduction, v.type.dtype) for v in node.inputs)


def _price(node: Node, wide: Tensors, mesh: Mesh, hardware: Hardware) -> Cause | None:
    """Return why the collective is there, with what it costs in float32."""
    op, cause = node.op, node.cause
    assert isinstance(op, AllReduce | ReduceScatter), "it is one of those that are widened"
    if cause is None:
        return None
    return price_cause(cause, op, op.count_bytes([x.type for x in wide]), mesh, hardware)
