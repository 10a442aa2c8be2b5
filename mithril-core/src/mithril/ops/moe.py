"""Ops that hand rows around inside groups, each row to its places, and bring them back.

They are what a mixture of experts sends tokens to its experts with. Both get the ids in both
directions: which row each place gets, and which places each row goes to. So each is the gradient of
the other, both only read rows by id, and nothing is ever scattered. An id of -1 names nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ir.rule import Rule
from mithril.ops.elementwise import take_cotangent
from mithril.types import TensorType


@register
@dataclass(frozen=True)
class MoeDispatch(Op):
    """Rows by id inside each group, zeros where an id is -1; operands (x, ids, back).

    `back` says where the rows of x went, in rounds: entry `round * rows + row` is the place of the
    result, or -1. A row is taken at most once a round.
    """

    name: ClassVar[str] = "moe_dispatch"
    indices: ClassVar[tuple[int, ...]] = (1, 2)

    def infer(self, inputs: Types) -> Types:
        x, ids, back = inputs
        _check(self.name, x, ids, back)
        if back.shape[1] % max(x.shape[1], 1):
            raise ShapeError(
                f"moe_dispatch of {x} has {back.shape[1]} places to go back; give some for each of "
                f"{x.shape[1]} rows"
            )
        return [x.with_shape((x.shape[0], ids.shape[1], x.shape[2]))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, ids, back = inputs
        return [
            apply_one(MoeCombine(x.shape[1]), take_cotangent(cotangents), back, ids),
            None,
            None,
        ]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule("g n d, g m, g p -> g m d", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, inputs[1].nbytes + 2 * outputs[0].nbytes)


@register
@dataclass(frozen=True)
class MoeCombine(Op):
    """Sums of the rows that ids name, inside each group; operands (x, ids, back).

    Row i of the result is the sum over all rounds of the row of x that `ids[round * rows + i]`
    names; `back` says for each row of x which row of the result it went to, or -1.
    """

    name: ClassVar[str] = "moe_combine"
    indices: ClassVar[tuple[int, ...]] = (1, 2)
    rows: int

    def infer(self, inputs: Types) -> Types:
        x, ids, back = inputs
        _check(self.name, x, ids, back)
        if ids.shape[1] % max(self.rows, 1) or back.shape[1] != x.shape[1]:
            raise ShapeError(
                f"moe_combine of {x} to {self.rows} rows has {ids.shape[1]} ids, and "
                f"{back.shape[1]} to go back; give as many ids for each row of the result, one "
                f"back for each of x"
            )
        return [x.with_shape((x.shape[0], self.rows, x.shape[2]))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        _, ids, back = inputs
        return [apply_one(MoeDispatch(), take_cotangent(cotangents), back, ids), None, None]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _rule("g m d, g p, g m -> g n d", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        x, ids, _ = inputs
        read = ids.size * x.shape[2]
        return Cost(read, ids.nbytes + read * x.dtype.itemsize + outputs[0].nbytes)


# ------------------------------------------------------------------ functions over operands


def moe_dispatch(x: AnyOperand, ids: AnyOperand, back: AnyOperand) -> AnyOperand:
    """Return rows of x by id inside each group, and zeros where an id is -1.

    Args:
        x: [groups, rows, features], of any dtype.
        ids: [groups, places], integers: the row each place gets, or -1.
        back: [groups, rounds * rows], integers: the place each row goes to, or -1. A row goes to
            one place a round.

    Returns:
        [groups, places, features], of the dtype of x.

    Raises:
        ShapeError: the shapes do not fit, or ids are not integers.

    >>> x, ids = backend.array([[[1.0], [2.0]]]), backend.array([[1, -1, 0]])
    >>> moe_dispatch(x, ids, back=backend.array([[2, 0]])).numpy().tolist()
    [[[2.0], [0.0], [1.0]]]
    """
    return apply_one(MoeDispatch(), x, ids, back)


def moe_combine(x: AnyOperand, ids: AnyOperand, back: AnyOperand, rows: int) -> AnyOperand:
    """Return for each row the sum of the rows of x that its ids name: what moe_dispatch undoes.

    Args:
        x: [groups, places, features], of any dtype.
        ids: [groups, rounds * rows], integers: the place of a row in each round, or -1.
        back: [groups, places], integers: the row each place belongs to, or -1.
        rows: rows of a group of the result.

    Returns:
        [groups, rows, features], of the dtype of x.

    Raises:
        ShapeError: the shapes do not fit, or ids are not integers.

    >>> x, ids = backend.array([[[2.0], [0.0], [1.0]]]), backend.array([[2, 0]])
    >>> moe_combine(x, ids, back=backend.array([[1, -1, 0]]), rows=2).numpy().tolist()
    [[[1.0], [2.0]]]
    """
    return apply_one(MoeCombine(rows), x, ids, back)


def _check(what: str, x: TensorType, ids: TensorType, back: TensorType) -> None:
    fits = x.rank == 3 and ids.rank == back.rank == 2
    if not fits or not x.shape[0] == ids.shape[0] == back.shape[0]:
        raise ShapeError(
            f"{what} gets rows {x} and ids {ids} and {back}; give rows [groups, rows, features] "
            f"and ids [groups, ids]"
        )
    for given_ids in (ids, back):
        if not given_ids.dtype.is_integer:
            raise ShapeError(f"{what} gets ids {given_ids}; give integers, say int32")


def _rule(text: str, inputs: Types, outputs: Types) -> Rule:
    whole = set("nmp") & set(text)
    return Rule.parse(text, inputs, outputs, whole=whole, linear=((0,),))


__all__ = ["MoeCombine", "MoeDispatch", "moe_combine", "moe_dispatch"]
