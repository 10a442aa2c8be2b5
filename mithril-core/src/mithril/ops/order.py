"""Ops along one dimension: order, and picking by position.

The dimension of which elements are picked may be split where half of it or less is. Each device
then takes the positions that lie in its part, and gives zeros for the others, which add up to the
whole; adding by position it makes what is added into its part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import apply, apply_one
from mithril.ir.rule import FactorDims, Rule
from mithril.ops.choice import keep_where, logical_and, logical_not, where
from mithril.ops.elementwise import cast, take_cotangent
from mithril.ops.index import check_ids
from mithril.ops.shape import Movement, normalize_axis
from mithril.ops.split_axis import gather_rows
from mithril.types import DType, TensorType


@dataclass(frozen=True)
class AlongAxis(Op):
    """Base of ops that work along one dimension of one operand: whole, if no subclass splits it."""

    axis: int

    def infer(self, inputs: Types) -> Types:
        normalize_axis(self.axis, inputs[0].rank, self.name)
        return [inputs[0]]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _along(self.axis, inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        size = inputs[0].shape[self.axis]
        steps = max(1, math.ceil(math.log2(size))) if size > 1 else 1
        return Cost(steps * inputs[0].size, sum_bytes(inputs, outputs))


@dataclass(frozen=True)
class RowOrder(AlongAxis):
    """Base of ops that need all of a row; devices that share one exchange it for others."""

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _exchange_dims(super().rule(inputs, outputs), self.axis)


@register
@dataclass(frozen=True)
class Sort(RowOrder):
    """The elements of every row in order, ascending unless `descending`; NaN comes last."""

    name: ClassVar[str] = "sort"
    descending: bool = False

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        if not inputs[0].dtype.is_float:
            return [None]
        order = apply_one(Argsort(self.axis, self.descending), inputs[0])
        size = inputs[0].shape[self.axis]
        return [apply_one(ScatterAlong(self.axis, size), order, take_cotangent(cotangents))]


@register
@dataclass(frozen=True)
class Argsort(RowOrder):
    """The int32 positions that put every row in order, NaN last; equal elements keep theirs."""

    name: ClassVar[str] = "argsort"
    descending: bool = False

    def infer(self, inputs: Types) -> Types:
        (x,) = AlongAxis.infer(self, inputs)
        return [TensorType(x.shape, DType.int32)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None]


@register
@dataclass(frozen=True)
class TopK(AlongAxis):
    """The k largest elements of every row, the largest first, and their int32 positions.

    Of equal elements the first one comes first. Devices that share the dimension choose from the k
    largest elements of each part.
    """

    name: ClassVar[str] = "top_k"
    k: int

    def infer(self, inputs: Types) -> Types:
        (x,) = AlongAxis.infer(self, inputs)
        size = x.shape[self.axis]
        if not 1 <= self.k <= size:
            raise ShapeError(
                f"cannot take the top {self.k} of dimension {self.axis} of {x}; k must be from 1 "
                f"to {size}"
            )
        shape = tuple(self.k if i == self.axis else n for i, n in enumerate(x.shape))
        return [x.with_shape(shape), TensorType(shape, DType.int32)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        if not inputs[0].dtype.is_float or cotangents[0] is None:
            return [None]
        size = inputs[0].shape[self.axis]
        return [apply_one(ScatterAlong(self.axis, size), outputs[1], cotangents[0])]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rule, along = AlongAxis.rule(self, inputs, outputs), frozenset({f"d{self.axis}"})
        if self.k == inputs[0].shape[self.axis]:
            return _exchange_dims(rule, self.axis)
        kinds = dict.fromkeys(along, "top")
        return replace(
            rule, reductions=kinds, whole=rule.whole - along, special=along, completed=along
        )

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x: Any = inputs[0]
        group, offset = shard.group(f"d{self.axis}"), shard.offset(f"d{self.axis}")
        if group is None or offset is None:
            return shard.apply(self, x)
        if self.k >= x.shape[self.axis]:  # no part has more
            return shard.apply(self, gather_rows(x, self.axis, group, "all elements"))
        best, at = apply(self, x)
        counts = [min(self.k, size) for size in group.parts]
        largest = gather_rows(best, self.axis, group, "the largest of each part", counts)
        positions = gather_rows(at + offset, self.axis, group, "where they are", counts)
        values, chosen = shard.apply(self, largest)
        return [values, apply_one(TakeAlong(self.axis), positions, chosen)]


@register
@dataclass(frozen=True)
class Flip(Movement):
    """The elements in the opposite order along some dimensions, which are whole."""

    name: ClassVar[str] = "flip"
    axes: tuple[int, ...]

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [apply_one(self, take_cotangent(cotangents))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        dims, sizes = name_dims(inputs[0])
        whole = frozenset(f"d{i}" for i in self.axes)
        return Rule(sizes, (dims,), (dims,), whole=whole, linear=((0,),))


@register
@dataclass(frozen=True)
class TakeAlong(Op):
    """The elements at given positions along a dimension, row by row; operands (x, indices).

    At the edge: a position outside the dimension, or below 0, is refused.

    Args:
        axis: the dimension.
        whole: on a shard, how long the whole dimension is, for what a refusal says: a position
            beyond it is beyond the part, too, so that kernels may ignore it.
    """

    name: ClassVar[str] = "take_along"
    indices: ClassVar[tuple[int, ...]] = (1,)
    axis: int
    whole: int = 0

    def infer(self, inputs: Types) -> Types:
        x, at = inputs
        _check_positions(self.name, x, at, self.axis)
        return [x.with_shape(at.shape)]

    def check_index(self, inputs: Types, index: Any) -> None:
        check_ids(self.name, index, inputs[0].shape[self.axis], np)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, at = inputs
        if not x.dtype.is_float:
            return [None, None]
        scattered = ScatterAlong(self.axis, x.shape[self.axis])
        return [apply_one(scattered, at, take_cotangent(cotangents)), None]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _picking(self.axis, inputs[0], inputs[1], "xi -> i", ((0,),))

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x: Any
        x, at = inputs
        local, is_own = _locate(at, self.axis, x.shape[self.axis], shard)
        if is_own is None:
            return shard.apply(self, x, local)
        whole = replace(self, whole=shard.whole(f"d{self.axis}"))
        return [keep_where(is_own, shard.apply(whole, x, local)[0])]

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, inputs[1].nbytes + 2 * outputs[0].nbytes)


@register
@dataclass(frozen=True)
class ScatterAlong(Op):
    """Zeros with updates added at positions along a dimension; operands (indices, updates).

    At the edge: a position outside the dimension, or below 0, is refused.

    Args:
        axis: the dimension.
        size: of the dimension.
        whole: on a shard, how long the whole dimension is, for what a refusal says: a position
            beyond it is beyond the part, too, so that kernels may ignore it.
    """

    name: ClassVar[str] = "scatter_along"
    indices: ClassVar[tuple[int, ...]] = (0,)
    axis: int
    size: int
    whole: int = 0

    def infer(self, inputs: Types) -> Types:
        at, updates = inputs
        if at.shape != updates.shape:
            raise ShapeError(
                f"cannot scatter {updates} to positions {at}; give one position for each update"
            )
        shape = tuple(self.size if i == self.axis else n for i, n in enumerate(at.shape))
        result = updates.with_shape(shape)
        _check_positions(self.name, result, at, self.axis)
        return [result]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None, apply_one(TakeAlong(self.axis), take_cotangent(cotangents), inputs[0])]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rule = _picking(self.axis, outputs[0], inputs[0], "ii -> x", ((1,),))
        return _exchange_dims(rule, self.axis)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        updates: Any
        at, updates = inputs
        size = shard.outputs[0].shape[self.axis]
        local, is_own = _locate(at, self.axis, size, shard)
        if is_own is None:
            return shard.apply(self, local, updates)
        op = ScatterAlong(self.axis, size, self.size)
        return shard.apply(op, local, keep_where(is_own, updates))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(inputs[1].size, inputs[0].nbytes + inputs[1].nbytes + outputs[0].nbytes)


def name_dims(x: TensorType) -> tuple[FactorDims, dict[str, int]]:
    """Return a factor for each dimension of more than one element, and sizes of all dimensions."""
    sizes = {f"d{i}": size for i, size in enumerate(x.shape)}
    return tuple((name,) if size > 1 else () for name, size in sizes.items()), sizes


def _along(axis: int, inputs: Types, outputs: Types) -> Rule:
    """Return the rule of an op whose dimension `axis` is whole, and may change its size."""
    dims, sizes = name_dims(inputs[0])
    made = []
    for result in outputs:
        own = list(dims)
        if result.shape[axis] != inputs[0].shape[axis]:
            sizes["k"] = result.shape[axis]
            own[axis] = ("k",) if sizes["k"] > 1 else ()
        made.append(tuple(own))
    whole = frozenset({f"d{axis}", *({"k"} & set(sizes))})
    return Rule(sizes, (dims,), tuple(made), whole=whole)


def _picking(
    axis: int, x: TensorType, at: TensorType, order: str, linear: tuple[tuple[int, ...], ...]
) -> Rule:
    """Return the rule of an op between x and what lies like the indices.

    Where most of the axis is picked, it is whole: sums over devices would be larger than x.
    """
    rows, sizes = name_dims(x)
    own = list(rows)
    sizes["k"] = at.shape[axis]
    own[axis] = ("k",) if sizes["k"] > 1 else ()
    sides = {"x": rows, "i": tuple(own)}
    left, right = order.split(" -> ")
    operands, results = (tuple(sides[letter] for letter in side) for side in (left, right))
    whole = frozenset({f"d{axis}"} if 2 * at.shape[axis] > x.shape[axis] else ())
    return Rule(sizes, operands, results, whole=whole, linear=linear)


def _locate(at: Any, axis: int, size: int, shard: Shard) -> tuple[Any, Any]:
    """Return positions as counted from a part of this size, and which of them count there.

    Those in other parts name the first element, and do not count. Those in no part stay, and count
    everywhere: they are met as on one device.
    """
    offset: Any = shard.offset(f"d{axis}")
    if offset is None:
        return at, None
    wide = at if at.dtype.itemsize >= DType.int32.itemsize else cast(at, DType.int32)
    offset = cast(offset, wide.dtype)
    inside = logical_and(wide >= offset, wide < offset + size)
    elsewhere = logical_and(wide >= 0, wide < shard.whole(f"d{axis}"))
    elsewhere = logical_and(elsewhere, logical_not(inside))
    return where(inside, wide - offset, where(elsewhere, 0, wide)), logical_not(elsewhere)


def _check_positions(what: str, x: TensorType, at: TensorType, axis: int) -> None:
    fits = x.rank == at.rank and all(
        a == b for i, (a, b) in enumerate(zip(x.shape, at.shape, strict=False)) if i != axis
    )
    if not at.dtype.is_integer or not fits:
        raise ShapeError(
            f"{what} along dimension {axis} of {x} has positions {at}; they must be integers in "
            f"the same shape except along that dimension"
        )


def _exchange_dims(rule: Rule, axis: int) -> Rule:
    """Return the rule by which another dimension is split in place of a whole one, if that pays."""
    along, sizes = f"d{axis}", rule.sizes
    others = [f for f in rule.splittable if f.startswith("d") and f != along]
    if along not in rule.whole or not others:
        return rule
    largest = tuple(sorted(others, key=lambda factor: -sizes[factor]))
    return replace(rule, proposes={along: largest}, may_gather=True)


def sum_bytes(inputs: Types, outputs: Types) -> int:
    """Return the bytes an op reads and writes."""
    total = 0
    for t in (*inputs, *outputs):
        total += t.nbytes
    return total


__all__ = [
    "AlongAxis", "Argsort", "Flip", "ScatterAlong", "Sort", "TakeAlong", "TopK",
]  # fmt: skip
