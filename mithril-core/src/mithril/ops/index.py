"""Ops that choose by integers: rows of a table, adding into rows, one-hot vectors, counting.

The chosen dimension (rows, classes) is an ordinary factor. On a shard that holds only a part of it
the op gets the offset of its part as a further int32 operand, and ids that lie elsewhere give
zeros: the shards' results add up to the whole, as in the vocabulary-parallel embedding of
Megatron-LM (Shoeybi et al. 2019). Ids count from 0; a negative id does not count from the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ir.rule import FactorDims, Rule
from mithril.ops.reading import read_integer
from mithril.ops.shape import normalize_axis, transpose
from mithril.types import DType, Shape, TensorType, as_dtype


@register
@dataclass(frozen=True)
class Take(Op):
    """Rows of a table by integer ids: an embedding lookup; operands (table, ids[, offset]).

    The table is [rows, *features], ids have any shape, the result is [*ids, *features]. Without an
    offset every id is a row of the table. With one, an int32 scalar, row `id - offset` is taken,
    and zeros for an id that lies outside the table.

    At the edge: without an offset an id outside the table, or below 0, is refused.

    Args:
        rows: on a shard, how many rows the whole table has: an id beyond them is a mistake there,
            too, which a kernel may refuse.
    """

    name: ClassVar[str] = "take"
    indices: ClassVar[tuple[int, ...]] = (1,)
    rows: int = 0

    def infer(self, inputs: Types) -> Types:
        table, ids = inputs[:2]
        _require_integers(self.name, ids)
        if not table.rank:
            raise ShapeError(f"cannot take rows of {table}; the table needs a dimension")
        return [table.with_shape(ids.shape + table.shape[1:])]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        table, ids, *offset = inputs
        g: Any = cotangents[0]
        scattered = apply_one(ScatterAdd(table.shape[0], self.rows), ids, g, *offset)
        return [scattered, None, *(None for _ in offset)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        table, ids = inputs[:2]
        at, rest = _dims("i", ids.shape), _dims("r", table.shape[1:])
        rows = _dims("v", table.shape[:1])
        sizes = _sizes((at, ids.shape), (rest, table.shape[1:]), (rows, table.shape[:1]))
        return Rule(sizes, (rows + rest, at), (at + rest,), linear=((0,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, inputs[1].nbytes + 2 * outputs[0].nbytes)

    def check_index(self, inputs: Types, index: Any) -> None:
        check_ids(self.name, index, inputs[0].shape[0], np)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        offset = _offset(shard, "v0")
        local = replace(self, rows=shard.whole("v0")) if offset else self
        return shard.apply(local, *inputs, *offset)


@register
@dataclass(frozen=True)
class ScatterAdd(Op):
    """Zeros with updates added into the rows that ids name; operands (ids, updates[, offset]).

    Updates are [*ids, *features], the result is [rows, *features]; 16-bit floats are accumulated
    in float32. Row `id - offset` is added to, with an int32 scalar or 0.

    At the edge: without an offset an id outside the rows, or below 0, is refused; with one it adds
    nothing.

    Args:
        rows: of the result.
        whole: on a shard, how many rows there are in all; a kernel may refuse ids beyond them.
    """

    name: ClassVar[str] = "scatter_add"
    indices: ClassVar[tuple[int, ...]] = (0,)
    rows: int
    whole: int = 0

    def infer(self, inputs: Types) -> Types:
        ids, updates = inputs[:2]
        _require_integers(self.name, ids)
        if updates.shape[: ids.rank] != ids.shape:
            raise ShapeError(
                f"cannot scatter {updates} by ids {ids}; the leading sizes of the updates must be "
                f"those of the ids"
            )
        if self.rows < 0:
            raise ShapeError(f"scatter_add has rows={self.rows}; give a number of 0 or more")
        return [updates.with_shape((self.rows, *updates.shape[ids.rank :]))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        ids, _, *offset = inputs
        g: Any = cotangents[0]
        return [None, apply_one(Take(self.whole), g, ids, *offset), *(None for _ in offset)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        ids, (rows, *rest) = inputs[0].shape, outputs[0].shape
        at, others, first = _dims("i", ids), _dims("r", rest), _dims("v", (rows,))
        sizes = _sizes((at, ids), (others, rest), (first, (rows,)))
        return Rule(sizes, (at, at + others), (first + others,), linear=((1,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(inputs[1].size, inputs[0].nbytes + inputs[1].nbytes + outputs[0].nbytes)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        offset = _offset(shard, "v0")
        whole = self.rows if offset else self.whole
        local = replace(self, rows=shard.outputs[0].shape[0], whole=whole)
        return shard.apply(local, *inputs, *offset)


@register
@dataclass(frozen=True)
class OneHot(Op):
    """1 at the place an id names along a new last dimension, else 0; operands (ids[, offset]).

    The place is `id - offset`, with an int32 scalar or 0; an id outside the classes has no 1.
    """

    name: ClassVar[str] = "one_hot"
    classes: int
    dtype: DType

    def infer(self, inputs: Types) -> Types:
        _require_integers(self.name, inputs[0])
        if self.classes < 1:
            raise ShapeError(f"one_hot has {self.classes} classes; give at least 1")
        return [TensorType((*inputs[0].shape, self.classes), self.dtype)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None] * len(inputs)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        shape, classes = inputs[0].shape, (self.classes,)
        at, last = _dims("i", shape), _dims("v", classes)
        return Rule(_sizes((at, shape), (last, classes)), (at,), (at + last,))

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        local = replace(self, classes=shard.outputs[0].shape[-1])
        return shard.apply(local, *inputs, *_offset(shard, "v0"))


@register
@dataclass(frozen=True)
class Iota(Op):
    """At each place its index along a dimension; operands ([offset])."""

    name: ClassVar[str] = "iota"
    shape: Shape
    axis: int
    dtype: DType

    def infer(self, inputs: Types) -> Types:
        normalize_axis(self.axis, len(self.shape), self.name)
        return [TensorType(self.shape, self.dtype)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None] * len(inputs)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        dims = _dims("d", self.shape)
        return Rule(_sizes((dims, self.shape)), (), (dims,))

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        local = replace(self, shape=shard.outputs[0].shape)
        return shard.apply(local, *_offset(shard, f"d{self.axis}"))


# ------------------------------------------------------------------ functions over operands


def take(x: AnyOperand, indices: AnyOperand, axis: int = 0) -> AnyOperand:
    """Return the rows of x that integer indices name, along a dimension, the first by default.

    Args:
        x: a table of at least one dimension.
        indices: integers of any shape, from 0 to less than the size of the dimension.
        axis: the dimension; a negative one counts from the end.

    Returns:
        The dtype of x and its shape, the dimensions of the indices in the place of that one.

    Raises:
        ShapeError: x is a scalar, the indices are not integers, there is no such dimension, or,
            when the rows are run, an index lies outside of it.

    >>> take(backend.array([[1, 2], [3, 4], [5, 6]]), backend.array([2, 0])).numpy()
    array([[5, 6],
           [1, 2]], dtype=int32)
    """
    at = normalize_axis(axis, x.ndim, "take") if x.ndim else 0
    if not at:
        return apply_one(Take(), x, indices)
    rest = [i for i in range(x.ndim) if i != at]
    rows = apply_one(Take(), transpose(x, (at, *rest)), indices)
    picked = range(indices.ndim)
    behind = range(indices.ndim, rows.ndim)
    return transpose(rows, (*behind[:at], *picked, *behind[at:]))


def scatter_add(ids: AnyOperand, updates: AnyOperand, rows: int) -> AnyOperand:
    """Return rows of zeros with updates added into the rows that ids name.

    Args:
        ids: integers of any shape, from 0 to less than `rows`.
        updates: [*ids.shape, ...], of any dtype.
        rows: number of rows of the result.

    Returns:
        [rows, ...], of the dtype of the updates.

    Raises:
        ShapeError: the ids are not integers, the leading sizes of the updates are not those of the
            ids, the number of rows is negative, or, when run, an id names no row.

    >>> scatter_add(backend.array([0, 2, 0]), backend.array([1.0, 2.0, 3.0]), 3).numpy()
    array([4., 0., 2.], dtype=float32)
    """
    return apply_one(ScatterAdd(read_integer(rows, "scatter_add's rows")), ids, updates)


def one_hot(ids: AnyOperand, classes: int, dtype: object = None) -> AnyOperand:
    """Return vectors with 1 at the place an id names; an id outside 0…classes-1 gives zeros.

    Args:
        ids: integers of any shape.
        classes: length of the vectors, at least 1.
        dtype: dtype of the result, the default float dtype if it is not given.

    Returns:
        [*ids.shape, classes], of that dtype.

    Raises:
        ShapeError: the ids are not integers, or there are no classes or no such dtype.

    >>> one_hot(backend.array([0, 2]), 3).numpy()
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    chosen = getattr(ids, "_default_float", DType.float32) if dtype is None else as_dtype(dtype)
    return apply_one(OneHot(read_integer(classes, "one_hot's classes"), chosen), ids)


def iota(
    like: AnyOperand, shape: Sequence[int], axis: int = 0, dtype: object = DType.int32
) -> AnyOperand:
    """Return, at each place of a shape, its index along a dimension.

    Args:
        like: any tensor of the graph, or array of the backend, in which the result is made.
        shape: shape of the result.
        axis: the dimension that is counted.
        dtype: dtype of the result.

    Returns:
        That shape and dtype, counted from 0.

    Raises:
        ShapeError: there is no such dimension or dtype.

    >>> iota(backend.ones(1), (2, 3), 1).numpy()
    array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    chosen = normalize_axis(axis, len(shape), "iota")
    (result,) = like._apply(Iota(tuple(shape), chosen, as_dtype(dtype)), ())
    return result


def _require_integers(what: str, ids: TensorType) -> None:
    if not ids.dtype.is_integer:
        raise ShapeError(f"op '{what}' needs integer ids, not {ids.dtype}; cast them, say to int32")


def check_ids(what: str, ids: Any, rows: int, xp: Any) -> None:
    """Refuse ids that name no row.

    Args:
        what: the op, for the message.
        ids: integers, an array of `xp`.
        rows: how many rows there are.
        xp: a namespace of the array API.

    Raises:
        ShapeError: an id lies outside 0…rows-1.
    """
    if math.prod(ids.shape) == 0:
        return
    low, high = int(xp.min(ids)), int(xp.max(ids))
    if low < 0 or high >= rows:
        raise ShapeError(
            f"{what} meets id {low if low < 0 else high}; ids must lie in 0…{rows - 1}; check the "
            f"ids, or enlarge the table or the number of classes"
        )


def _offset(shard: Shard, factor: str) -> tuple[Any, ...]:
    offset = shard.offset(factor)
    return () if offset is None else (offset,)


def _dims(letter: str, shape: Sequence[int]) -> FactorDims:
    return tuple((f"{letter}{i}",) if size > 1 else () for i, size in enumerate(shape))


def _sizes(*parts: tuple[FactorDims, Sequence[int]]) -> dict[str, int]:
    return {
        name: size
        for dims, shape in parts
        for dim, size in zip(dims, shape, strict=True)
        for name in dim
    }


__all__ = ["Iota", "OneHot", "ScatterAdd", "Take", "iota", "one_hot", "scatter_add", "take"]
