"""Ops that only move elements: reshape, transpose, broadcast, concatenate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import AnyOperand, Operand, apply_one
from mithril.ir.rule import FactorDims, Rule, elementwise_rule
from mithril.ops.reading import read_integers
from mithril.types import Shape, TensorType


@dataclass(frozen=True)
class Movement(Op):
    """Base of ops without arithmetic: linear in their operands, no floating-point work."""

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, sum(t.nbytes for t in outputs))


@register
@dataclass(frozen=True)
class Reshape(Movement):
    """The same elements, row-major, in another shape.

    Factors come from the running greatest common divisor over both shapes, major to minor; where
    the shapes share no boundary, the rest of the block is whole.
    """

    name: ClassVar[str] = "reshape"
    is_view: ClassVar[bool] = True
    shape: Shape

    def infer(self, inputs: Types) -> Types:
        if math.prod(self.shape) != inputs[0].size:
            raise ShapeError(
                f"cannot reshape {inputs[0]} ({inputs[0].size} elements) to {self.shape} "
                f"({math.prod(self.shape)} elements); keep the number of elements"
            )
        return [inputs[0].with_shape(self.shape)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [reshape(_take_cotangent(cotangents), inputs[0].shape)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        sizes, old, new, whole = reshape_factors(inputs[0].shape, outputs[0].shape)
        return Rule(sizes, (old,), (new,), whole=whole, linear=((0,),))

    def resize(self, outputs: Types) -> Op:
        return replace(self, shape=outputs[0].shape)


def reshape_factors(
    old: Shape, new: Shape
) -> tuple[dict[str, int], FactorDims, FactorDims, frozenset[str]]:
    """Return factor sizes, the factors of both shapes' dimensions, and which may not be split.

    >>> reshape_factors((8, 6), (8, 2, 3))[1:3]
    ((('f0',), ('f1', 'f2')), (('f0',), ('f1',), ('f2',)))
    """
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    left, right = _Walk(old), _Walk(new)
    while left.size and right.size:
        common = math.gcd(left.size, right.size)
        if common > 1:
            factor = f"f{len(sizes)}"
            sizes[factor] = common
            left.take(factor, common)
            right.take(factor, common)
        else:
            _take_block(left, right, sizes, whole)
    return sizes, left.dims, right.dims, frozenset(whole)


class _Walk:
    """Walks over a shape, major to minor, handing out factors of its dimensions."""

    def __init__(self, shape: Shape) -> None:
        self._left = list(shape)
        self._at = 0
        self._dims: list[tuple[str, ...]] = [() for _ in shape]
        self._skip_ones()

    @property
    def size(self) -> int:
        """What is left of the current dimension; 0 at the end."""
        return self._left[self._at] if self._at < len(self._left) else 0

    @property
    def dims(self) -> FactorDims:
        """The factors handed to each dimension."""
        return tuple(self._dims)

    def take(self, factor: str, size: int) -> None:
        """Give a factor of some size to the current dimension."""
        self._dims[self._at] += (factor,)
        self._left[self._at] //= size
        self._skip_ones()

    def _skip_ones(self) -> None:
        while self.size == 1:
            self._at += 1


def _take_block(left: _Walk, right: _Walk, sizes: dict[str, int], whole: set[str]) -> None:
    """Take whole dimensions on both sides until they hold equally many elements."""
    held = [1, 1]
    while held[0] != held[1] or held[0] == 1:
        side = 0 if held[0] <= held[1] else 1
        walk = (left, right)[side]
        factor, size = f"f{len(sizes)}", walk.size
        sizes[factor] = size
        whole.add(factor)
        held[side] *= size
        walk.take(factor, size)


@register
@dataclass(frozen=True)
class Transpose(Movement):
    """The dimensions in another order: result dimension i is operand dimension order[i]."""

    name: ClassVar[str] = "transpose"
    is_view: ClassVar[bool] = True
    order: tuple[int, ...]

    def infer(self, inputs: Types) -> Types:
        if sorted(self.order) != list(range(inputs[0].rank)):
            raise ShapeError(
                f"cannot transpose {inputs[0]} by {self.order}; name every dimension once"
            )
        return [inputs[0].with_shape(tuple(inputs[0].shape[i] for i in self.order))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        inverse = tuple(self.order.index(i) for i in range(len(self.order)))
        return [_only(Transpose(inverse), cotangents[0])]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        names = [f"d{i}" for i in range(inputs[0].rank)]
        text = f"{' '.join(names)} -> {' '.join(names[i] for i in self.order)}"
        return Rule.parse(text, inputs, outputs, linear=((0,),))


@register
@dataclass(frozen=True)
class Broadcast(Movement):
    """The operand repeated to a larger shape, aligned at the right as in NumPy."""

    name: ClassVar[str] = "broadcast"
    is_view: ClassVar[bool] = True
    shape: Shape

    def infer(self, inputs: Types) -> Types:
        old = inputs[0].shape
        tail = self.shape[len(self.shape) - len(old) :]
        fits = len(old) <= len(self.shape) and all(
            a in (1, b) for a, b in zip(old, tail, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"cannot broadcast {inputs[0]} to {self.shape}; sizes must be equal or 1, aligned "
                f"at the right"
            )
        return [inputs[0].with_shape(self.shape)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        from mithril.ops.elementwise import sum_to

        return [sum_to(_take_cotangent(cotangents), inputs[0].shape)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return elementwise_rule(inputs, outputs[0], linear=((0,),))

    def resize(self, outputs: Types) -> Op:
        return replace(self, shape=outputs[0].shape)


@register
@dataclass(frozen=True)
class Concatenate(Movement):
    """Operands one after another along a dimension, which is whole."""

    name: ClassVar[str] = "concatenate"
    axis: int

    def infer(self, inputs: Types) -> Types:
        first = inputs[0]
        for other in inputs[1:]:
            same = [a == b for a, b in zip(first.shape, other.shape, strict=False)]
            others_fit = all(same[: self.axis] + same[self.axis + 1 :])
            if other.rank != first.rank or other.dtype != first.dtype or not others_fit:
                raise ShapeError(
                    f"cannot concatenate {first} and {other} along dimension {self.axis}; all "
                    f"other sizes and the dtypes must be equal"
                )
        shape = list(first.shape)
        shape[self.axis] = sum(t.shape[self.axis] for t in inputs)
        return [first.with_shape(tuple(shape))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        parts, start = [], 0
        for x in inputs:
            index = [slice(None)] * x.ndim
            index[self.axis] = slice(start, start + x.shape[self.axis])
            parts.append(_take_cotangent(cotangents)[tuple(index)])
            start += x.shape[self.axis]
        return parts

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        def side(t: TensorType, own: str) -> str:
            return " ".join(own if i == self.axis else f"d{i}" for i in range(t.rank))

        operands = ", ".join(side(t, f"x{n}") for n, t in enumerate(inputs))
        whole = ["cat", *(f"x{n}" for n in range(len(inputs)))]
        together = tuple(range(len(inputs)))
        text = f"{operands} -> {side(outputs[0], 'cat')}"
        return Rule.parse(text, inputs, outputs, whole=whole, linear=(together,))


# ------------------------------------------------------------------ functions over operands


def reshape(x: AnyOperand, shape: int | Sequence[int]) -> AnyOperand:
    """Return the same elements, row-major, in another shape.

    Args:
        x: any tensor.
        shape: sizes, or one size; one of them may be -1, which stands for what is left.

    Returns:
        That shape, the dtype of x; x itself when it has that shape.

    Raises:
        ShapeError: the number of elements differs, or a size is no integer.

    >>> reshape(backend.array([1, 2, 3, 4]), (2, -1)).numpy()
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    sizes = read_integers(shape, "reshape's shape")
    if sizes.count(-1) == 1:
        known = math.prod(size for size in sizes if size != -1)
        if known == 0 or x.size % known:
            raise ShapeError(
                f"cannot reshape {x.type} to {sizes}; {x.size} is not a multiple of {known}"
            )
        sizes = tuple(x.size // known if size == -1 else size for size in sizes)
    return x if sizes == x.shape else apply_one(Reshape(sizes), x)


def transpose(x: AnyOperand, order: int | Sequence[int] | None = None) -> AnyOperand:
    """Return the dimensions in another order, reversed by default.

    Args:
        x: any tensor.
        order: for each dimension of the result the one of x.

    Returns:
        The dtype of x; dimension i has the size of dimension `order[i]` of x.

    Raises:
        ShapeError: a dimension does not exist, or not every one is named once.

    >>> transpose(backend.array([[1, 2, 3], [4, 5, 6]])).numpy()
    array([[1, 4],
           [2, 5],
           [3, 6]], dtype=int32)
    """
    chosen = (
        tuple(reversed(range(x.ndim)))
        if order is None
        else read_integers(order, "transpose's order")
    )
    resolved = tuple(normalize_axis(i, x.ndim, "transpose") for i in chosen)
    return x if resolved == tuple(range(x.ndim)) else apply_one(Transpose(resolved), x)


def broadcast_to(x: AnyOperand, shape: int | Sequence[int]) -> AnyOperand:
    """Return x repeated to a larger shape, as in `numpy.broadcast_to`.

    Args:
        x: any tensor.
        shape: sizes, or one size; those of x, aligned at the right, are equal or 1.

    Returns:
        That shape, the dtype of x; x itself when it has that shape.

    Raises:
        ShapeError: the sizes do not fit.

    >>> broadcast_to(backend.array([1, 2]), (3, 2)).numpy()
    array([[1, 2],
           [1, 2],
           [1, 2]], dtype=int32)
    """
    sizes = read_integers(shape, "broadcast_to's shape")
    return x if sizes == x.shape else apply_one(Broadcast(sizes), x)


def concatenate(operands: Sequence[AnyOperand], axis: int = 0) -> AnyOperand:
    """Return operands one after another along a dimension.

    Args:
        operands: tensors of one dtype, with equal sizes but for that of the dimension.
        axis: the dimension; a negative one counts from the end.

    Returns:
        Their dtype; the sizes along the dimension are added up.

    Raises:
        ShapeError: there are none, shapes or dtypes differ, or there is no such dimension.

    >>> concatenate([backend.array([[1, 2]]), backend.array([[3, 4]])], 1).numpy()
    array([[1, 2, 3, 4]], dtype=int32)
    """
    require_list(operands, "concatenate")
    if not operands:
        raise ShapeError("cannot concatenate no tensors; pass at least one")
    return apply_one(Concatenate(normalize_axis(axis, operands[0].ndim, "concatenate")), *operands)


def require_list(operands: object, what: str) -> None:
    """Raise unless several tensors are given in a list, not one in their place.

    Raises:
        ShapeError: one tensor is given.
    """
    if isinstance(operands, Operand):
        raise ShapeError(
            f"{what} takes a list of tensors, not {operands.type}; give [x, y], or unstack(x) for "
            f"the rows of one"
        )


def normalize_axis(axis: int, rank: int, what: str) -> int:
    """Return a dimension counted from 0.

    Raises:
        ShapeError: there is no such dimension.
    """
    axis = int(axis) if isinstance(axis, np.integer) else axis
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise ShapeError(
            f"{what} names dimension {axis!r} of a tensor of rank {rank}; {legal(rank)}"
        )
    return axis % rank


def slice_along(x: Any, axis: int, start: int | None, stop: int | None) -> Any:
    """Return the elements from one place to another along a dimension; None is the end.

    Args:
        x: any tensor.
        axis: the dimension, counted from 0.
        start: the first place.
        stop: the place behind the last one.
    """
    return x[(*(slice(None),) * axis, slice(start, stop))]


def legal(size: int) -> str:
    """Return which dimensions, or indices, there are."""
    if size < 2:
        return "use 0" if size else "it has none"
    return f"use 0 to {size - 1}, or -{size} to -1"


def _take_cotangent(cotangents: Cotangents) -> Any:
    return cotangents[0]


def _only(op: Op, x: Any) -> Any:
    return apply_one(op, x)


__all__ = [
    "Broadcast", "Concatenate", "Movement", "Reshape", "Transpose", "broadcast_to", "concatenate",
    "reshape", "transpose",
]  # fmt: skip
