"""What kernels take while they run, besides operands and results.

A product of tensors is computed as one of matrices: an operand is copied whose dimensions do not
lie behind one another as that needs it; some engines want rows in order, too. What is exchanged
along another dimension than the first is copied where the parts of devices have to lie behind one
another, and so is what several operands of a collective have in one buffer, or what the library
below copies anyway. Where that has no reduce_scatter, a device gets its parts of all others.
Attention in parts has some copies of the scores of one. Other kernels take what an engine says of
them (`Execution.workspaces`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from mithril.cost.compiled_form import is_in_parts
from mithril.cost.strides import Strides, in_order, lay_out
from mithril.ir import Node, Value
from mithril.ir.start import find_begun
from mithril.ops.collective import AllGather, AllToAll, Permute, ReduceScatter
from mithril.ops.linalg import Einsum
from mithril.ops.query_rows import count_rows_at_once
from mithril.plan import Execution
from mithril.types import DType

SCORES = {"attention": 2, "attention_gradient": 3}
"""How many float32 numbers a score of a part takes: with what is made of it."""


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
    for name, parts in execution.ordered:
        if name == node.op.name:
            return _count_disordered(node, parts, strides)
    if is_in_parts(node, execution.scores_at_once):
        q, k = (value.type for value in node.inputs[:2])
        rows = count_rows_at_once(q, k, execution.scores_at_once)
        return 4 * SCORES[node.op.name] * q.shape[0] * rows * q.shape[2] * k.shape[1]
    if isinstance(node.op, Einsum) and not execution.fuses:
        return _count_arranged(node, node.op, execution.orders_products, strides)
    if node.op.is_collective and execution.joins_parts:
        return _count_joined(node, execution)
    return 0


def _count_disordered(node: Node, parts: Sequence[str], strides: Mapping[Value, Strides]) -> int:
    """Return the bytes of the operands that are copied because they do not lie in order.

    Args:
        node: whose they are.
        parts: what of each has to (`Execution.ordered`).
        strides: of values that are views.
    """
    total = 0
    for value, part in zip(node.inputs, parts, strict=False):
        known, whole = strides.get(value), in_order(value.type.shape)
        wanted = {"rows": whole[-1:], "all": whole, "": ()}[part]
        if known and wanted and known[-len(wanted) :] != wanted:
            total += value.type.nbytes
    return total


def _count_arranged(node: Node, op: Einsum, least: int, strides: Mapping[Value, Strides]) -> int:
    """Return the bytes of the operands that are copied to be matrices, or to lie row by row.

    Args:
        node: the product.
        op: likewise.
        least: from so many multiplications on rows lie in order (`Execution.orders_products`).
        strides: of values that are views.
    """
    left, right, result = op.terms
    batch = [c for c in result if c in left and c in right]
    contracted = [c for c in left if c in right and c not in result]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    groups = ((batch, rows, contracted), (batch, contracted, columns))
    total, turned = 0, []
    for value, term, wanted in zip(node.inputs, (left, right), groups, strict=True):
        at = [term.index(c) for group in wanted for c in group]
        known = strides.get(value) or in_order(value.type.shape)
        sizes = dict(zip(term, value.type.shape, strict=True))
        shape = tuple(value.type.shape[i] for i in at)
        matrix = tuple(prod(sizes[c] for c in group) for group in wanted)
        laid = lay_out(shape, tuple(known[i] for i in at), matrix)
        if laid is None:
            total += value.type.nbytes
        depth = -1 if value is node.inputs[0] else -2  # where the contracted dimension is
        turned.append(laid is not None and laid[depth] != 1 and matrix[depth] != 1)
    sizes = dict(zip(left + right, (n for v in node.inputs for n in v.type.shape), strict=True))
    is_large = 0 < least <= prod(sizes.values())
    if batch or not is_large or node.outputs[0].type.dtype is not DType.float32:
        return total
    first, second = (v.type.nbytes * t for v, t in zip(node.inputs, turned, strict=True))
    made = node.outputs[0].type.nbytes
    return total + (first if first <= second + made else max(second, made))


def _count_joined(node: Node, execution: Execution) -> int:
    """Return the bytes of parts that are laid behind one another, or joined, by a collective."""
    op = find_begun(node.op)
    given, made = (sum(v.type.nbytes for v in values) for values in (node.inputs, node.outputs))
    is_flat = len(node.inputs) > 1  # in one buffer
    is_laid_out = is_flat or execution.copies_parts or bool(getattr(op, "dimension", 0))
    if isinstance(op, AllGather):
        return (made if is_laid_out else 0) + (given if is_flat else 0)
    if isinstance(op, ReduceScatter):
        is_cut = is_flat or bool(op.dimension)
        all_come = not is_cut and op.count > 2  # with a device's own between those of others
        coming = given if all_come else given * (op.count - 1) // op.count
        return given * is_cut + coming * execution.copies_parts
    if isinstance(op, AllToAll):
        return made + (given if op.split or is_flat else 0)
    return given if isinstance(op, Permute) and is_flat else 0
