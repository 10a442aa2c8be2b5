"""Products in which every block of rows chooses its matrix from a stack, as experts need them.

Blocks are computed once each, whatever the number of matrices. Ids count from 0; a block whose id
names no matrix gives zeros, and adds nothing. So on a shard of the stack the ids are counted from
its offset, and the shards' results add up to the whole.

Groups that are `aligned` are those of the entries: the blocks of group i have id i, or none. They
are split together with the stack, and every shard has a whole result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.arithmetic import Subtract
from mithril.ops.elementwise import take_cotangent
from mithril.ops.order import sum_bytes
from mithril.types import TensorType


@register
@dataclass(frozen=True)
class GroupedMatmul(Op):
    """Each block of rows times a matrix of a stack; operands (x, ids, stack).

    The rows [groups, blocks, rows, in] meet matrices [entries, out, in], or [entries, in, out] if
    `transposed`. Groups are those of the entries if `aligned`.
    """

    name: ClassVar[str] = "grouped_matmul"
    indices: ClassVar[tuple[int, ...]] = (1,)
    transposed: bool = False
    aligned: bool = False

    def infer(self, inputs: Types) -> Types:
        x, ids, stack = inputs
        _check(self.name, (x,), ids, stack.shape[0] if self.aligned and stack.rank else None)
        if stack.rank != 3 or stack.shape[1 if self.transposed else 2] != x.shape[3]:
            raise ShapeError(
                f"{self.name} of rows {x} meets the stack {stack}; give matrices with "
                f"{x.shape[3]} inputs, [entries, "
                f"{'inputs, outputs' if self.transposed else 'outputs, inputs'}]"
            )
        return [x.with_shape((*x.shape[:3], stack.shape[2 if self.transposed else 1]))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (x, ids, stack), g = inputs, take_cotangent(cotangents)
        pair = (x, g) if self.transposed else (g, x)
        outer = apply_one(GroupedOuter(stack.shape[0], self.aligned), *pair, ids)
        back = GroupedMatmul(not self.transposed, self.aligned)
        return [apply_one(back, g, ids, stack), None, outer]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        stack = "e i o" if self.transposed else "e o i"
        g = "e" if self.aligned else "g"
        text = f"{g} b r i, {g} b, {stack} -> {g} b r o"
        return Rule.parse(text, inputs, outputs, linear=((0,), (2,)))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(2 * inputs[0].size * outputs[0].shape[3], sum_bytes(inputs, outputs))

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x, ids, stack = inputs
        return shard.apply(self, x, _localize_ids(ids, shard), stack)


@register
@dataclass(frozen=True)
class GroupedOuter(Op):
    """The sum of left.T @ right over the blocks of each entry; operands (left, right, ids).

    Of rows [groups, blocks, rows, left] and [groups, blocks, rows, right] it makes
    [entries, left, right]. Groups are those of the entries if `aligned`.
    """

    name: ClassVar[str] = "grouped_outer"
    indices: ClassVar[tuple[int, ...]] = (2,)
    entries: int
    aligned: bool = False

    def infer(self, inputs: Types) -> Types:
        left, right, ids = inputs
        _check(self.name, (left, right), ids, self.entries if self.aligned else None)
        return [left.with_shape((self.entries, left.shape[3], right.shape[3]))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (left, right, ids), g = inputs, take_cotangent(cotangents)
        return [
            apply_one(GroupedMatmul(False, self.aligned), right, ids, g),
            apply_one(GroupedMatmul(True, self.aligned), left, ids, g),
            None,
        ]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        g = "e" if self.aligned else "g"
        text = f"{g} b r l, {g} b r m, {g} b -> e l m"
        return Rule.parse(text, inputs, outputs, linear=((0,), (1,)))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(2 * inputs[0].size * inputs[1].shape[3], sum_bytes(inputs, outputs))

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        left, right, ids = inputs
        local = replace(self, entries=shard.outputs[0].shape[0])
        return shard.apply(local, left, right, _localize_ids(ids, shard))


# ------------------------------------------------------------------ functions over operands


def grouped_matmul(x: Any, ids: Any, stack: Any, *, aligned: bool = False) -> Any:
    """Return each block of rows times the transposed matrix that its id names.

    Args:
        x: [groups, blocks, rows, in], of a float dtype.
        ids: [groups, blocks], integers; a block whose id names no matrix gives zeros.
        stack: [entries, out, in], of the dtype of x.
        aligned: whether groups are those of the entries, so that ids of group i are i, or none.

    Returns:
        [groups, blocks, rows, out], of the dtype of x.

    Raises:
        ShapeError: shapes or dtypes do not fit.

    >>> x, ids = backend.ones((1, 2, 1, 2)), backend.array([[1, 0]])
    >>> stack = backend.array([[[1.0, 2.0]], [[3.0, 4.0]]])
    >>> grouped_matmul(x, ids, stack).numpy().tolist()
    [[[[7.0]], [[3.0]]]]
    """
    return apply_one(GroupedMatmul(aligned=aligned), x, ids, stack)


def _localize_ids(ids: Any, shard: Shard) -> Any:
    """Return ids counted from where the shard's part of the stack starts."""
    offset = shard.offset("e")
    return ids if offset is None else shard.apply(Subtract(), ids, offset)[0]


def _check(what: str, rows: tuple[TensorType, ...], ids: TensorType, entries: int | None) -> None:
    fits = all(x.rank == 4 and x.shape[:3] == rows[0].shape[:3] for x in rows)
    if not fits or ids.shape != rows[0].shape[:2]:
        raise ShapeError(
            f"{what} gets rows {' and '.join(map(str, rows))} and ids {ids}; give rows [groups, "
            f"blocks, rows, features] and ids [groups, blocks]"
        )
    if entries not in (None, ids.shape[0]):
        raise ShapeError(
            f"{what} gets {ids.shape[0]} aligned groups for {entries} entries; give one each"
        )
    if not ids.dtype.is_integer or len({x.dtype for x in rows}) > 1 or not rows[0].dtype.is_float:
        raise ShapeError(
            f"{what} gets rows {' and '.join(map(str, rows))} and ids {ids}; give rows of one "
            f"float dtype and ids of int32"
        )


__all__ = ["GroupedMatmul", "GroupedOuter", "grouped_matmul"]
