"""What kernels take while they run, besides operands and results.

A product of tensors is computed as one of matrices: an operand is copied whose dimensions do not
lie behind one another as that needs it. What is exchanged along another dimension than the first is
copied, too, where the parts of devices have to lie behind one another, and so is what several
operands of a collective have in one buffer. Other kernels take what an
engine says of them (`Execution.workspaces`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from mithril.cost.strides import Strides, in_order, lay_out
from mithril.ir import Node, Value
from mithril.ir.start import Start
from mithril.ops.collective import AllGather, AllToAll, Permute, ReduceScatter
from mithril.ops.linalg import Einsum
from mithril.plan import Execution


def count_workspace(node: Node, execution: Execution, strides: Mapping[Value, Strides]) -> int:
    """Return the bytes that a node takes besides operands and results.

    Args:
        node: no loop.
        execution: how the engine runs it.
        strides: of values that are views.
    """
    for name, factor in execution.workspaces:
        if name == node.op.name:
            return int(factor * max(value.type.nbytes for value in (*node.inputs, *node.outputs)))
    if isinstance(node.op, Einsum) and not execution.fuses:
        return _count_arranged(node, node.op, strides)
    if node.op.is_collective and execution.joins_parts:
        return _count_joined(node)
    return 0


def _count_arranged(node: Node, op: Einsum, strides: Mapping[Value, Strides]) -> int:
    """Return the bytes of the operands that are copied to be matrices."""
    left, right, result = op.terms
    batch = [c for c in result if c in left and c in right]
    contracted = [c for c in left if c in right and c not in result]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    groups = ((batch, rows, contracted), (batch, contracted, columns))
    total = 0
    for value, term, wanted in zip(node.inputs, (left, right), groups, strict=True):
        at = [term.index(c) for group in wanted for c in group]
        known = strides.get(value) or in_order(value.type.shape)
        sizes = dict(zip(term, value.type.shape, strict=True))
        shape = tuple(value.type.shape[i] for i in at)
        matrix = tuple(prod(sizes[c] for c in group) for group in wanted)
        if lay_out(shape, tuple(known[i] for i in at), matrix) is None:
            total += value.type.nbytes
    return total


def _count_joined(node: Node) -> int:
    """Return the bytes of parts that are laid behind one another, or joined, by a collective."""
    op = node.op.collective if isinstance(node.op, Start) else node.op
    given, made = (sum(v.type.nbytes for v in values) for values in (node.inputs, node.outputs))
    is_flat = len(node.inputs) > 1  # in one buffer
    if isinstance(op, AllGather):
        return (made if op.dimension or is_flat else 0) + (given if is_flat else 0)
    if isinstance(op, ReduceScatter):
        return given if op.dimension or is_flat else 0
    if isinstance(op, AllToAll):
        return made + (given if op.split else 0)
    return given if isinstance(op, Permute) else 0
