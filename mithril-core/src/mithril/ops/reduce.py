"""Reductions: sum, max, min, any, all, and mean.

A reduced dimension that is split leaves partial results: sums are added up, maxima compared. A sum
of truth values is whether one is true, which is `any`; `all` is made of it there. `mean` is a sum
times one over the global count, so that it needs nothing of its own on a shard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import AnyOperand, apply_one
from mithril.ir.rule import FactorDims, Rule
from mithril.ops.arithmetic import multiply
from mithril.ops.choice import equal, logical_not, not_equal
from mithril.ops.elementwise import cast, wide_float
from mithril.ops.reading import read_flag
from mithril.ops.shape import broadcast_to, normalize_axis, reshape
from mithril.types import DType, Shape, TensorType

Axes = int | Sequence[int] | None


@dataclass(frozen=True)
class Reduction(Op):
    """Base of reductions over `axes`; with `keepdims` they stay as dimensions of size 1."""

    axes: tuple[int, ...]
    keepdims: bool

    def infer(self, inputs: Types) -> Types:
        x = inputs[0]
        if set(self.axes) - set(range(x.rank)) or len(set(self.axes)) < len(self.axes):
            raise ShapeError(
                f"op '{self.name}' cannot reduce dimensions {self.axes} of {x}; name each once, "
                f"from 0 to {x.rank - 1}"
            )
        return [TensorType(self._keep_dims(x.shape), self.result_dtype(x.dtype))]

    def result_dtype(self, dtype: DType) -> DType:
        """Return the dtype of the result; by default the operand's."""
        return dtype

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _reduction_rule(inputs[0], self.axes, self.keepdims, "whole")

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(inputs[0].size, inputs[0].nbytes + outputs[0].nbytes)

    def spread(self, x: Any, shape: Shape) -> Any:
        """Return a result-shaped tensor broadcast back over the reduced dimensions."""
        kept = tuple(1 if i in self.axes else size for i, size in enumerate(shape))
        return broadcast_to(reshape(x, kept), shape)

    def _keep_dims(self, shape: Shape) -> Shape:
        if self.keepdims:
            return tuple(1 if i in self.axes else size for i, size in enumerate(shape))
        return tuple(size for i, size in enumerate(shape) if i not in self.axes)


@register
@dataclass(frozen=True)
class Sum(Reduction):
    """The sum over some dimensions; 16-bit floats are accumulated in float32."""

    name: ClassVar[str] = "sum"

    def result_dtype(self, dtype: DType) -> DType:
        return total_dtype(dtype)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        flows = inputs[0].dtype.is_float
        return [self.spread(cotangents[0], inputs[0].shape) if flows else None]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        # Booleans do not add up: true and true is true.
        linear = () if inputs[0].dtype == DType.bool_ else ((0,),)
        return _reduction_rule(inputs[0], self.axes, self.keepdims, "sum", linear)


@dataclass(frozen=True)
class Extremum(Reduction):
    """The largest or smallest element; its gradient is shared evenly between ties, as in JAX."""

    def infer(self, inputs: Types) -> Types:
        results = super().infer(inputs)
        require_elements(self.name, inputs[0], self.axes)
        return results

    def result_dtype(self, dtype: DType) -> DType:
        if dtype == DType.bool_:
            raise ShapeError(f"op '{self.name}' needs numbers, not bool; use any() or all()")
        return dtype

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _reduction_rule(inputs[0], self.axes, self.keepdims, self.name)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x = inputs[0]
        if not x.dtype.is_float:
            return [None]
        is_winner = cast(equal(x, self.spread(outputs[0], x.shape)), x.dtype)
        share = cotangents[0] / sum(is_winner, self.axes, keepdims=self.keepdims)
        return [self.spread(share, x.shape) * is_winner]


@register
@dataclass(frozen=True)
class Max(Extremum):
    """The largest element over some dimensions, NaN if one is; ties share the gradient evenly."""

    name: ClassVar[str] = "max"


@register
@dataclass(frozen=True)
class Min(Extremum):
    """The smallest element over some dimensions, NaN if one is; ties share the gradient evenly."""

    name: ClassVar[str] = "min"


@dataclass(frozen=True)
class Quantifier(Reduction):
    """A reduction of booleans; no gradient flows."""

    def result_dtype(self, dtype: DType) -> DType:
        if dtype != DType.bool_:
            raise ShapeError(f"op '{self.name}' needs bool, not {dtype}; compare or cast first")
        return DType.bool_

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None]


@register
@dataclass(frozen=True)
class AnyTrue(Quantifier):
    """Whether any element over some dimensions is true: the sum of truth values."""

    name: ClassVar[str] = "any"

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _reduction_rule(inputs[0], self.axes, self.keepdims, "sum")


@register
@dataclass(frozen=True)
class AllTrue(Quantifier):
    """Whether all elements over some dimensions are true; where one is split, none is false."""

    name: ClassVar[str] = "all"

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rule = super().rule(inputs, outputs)
        return replace(rule, expandable=rule.whole)

    def expand(self, inputs: Tensors) -> Tensors:
        found = apply_one(AnyTrue(self.axes, self.keepdims), logical_not(inputs[0]))
        return [logical_not(found)]


# ------------------------------------------------------------------ functions over operands


def sum(x: AnyOperand, axis: Axes = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the sum over some dimensions, all by default.

    Args:
        x: numbers or booleans of any shape; 16-bit floats are added up in float32.
        axis: the dimension, or several; None for all.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        The dtype of x, int32 of booleans and integers of less than 32 bits; the shape of x without
        these dimensions.

    Raises:
        ShapeError: a dimension does not exist, or is named twice.

    >>> x = backend.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> sum(x).numpy().item(), sum(x, 0).numpy().tolist()
    (21.0, [5.0, 7.0, 9.0])
    """
    keepdims = read_flag(keepdims, "sum's keepdims")
    return apply_one(Sum(read_axes(axis, x.ndim, "sum"), keepdims), x)


def max(x: AnyOperand, axis: Axes = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the largest element over some dimensions, all by default.

    Args:
        x: numbers of any shape.
        axis: the dimension, or several; None for all.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        The dtype of x; the shape of x without these dimensions.

    Raises:
        ShapeError: there are no elements, or booleans; a dimension does not exist, or is named
            twice.

    >>> max(backend.array([[1.0, 5.0], [4.0, 2.0]]), 1).numpy()
    array([5., 4.], dtype=float32)
    """
    keepdims = read_flag(keepdims, "max's keepdims")
    return apply_one(Max(read_axes(axis, x.ndim, "max"), keepdims), x)


def min(x: AnyOperand, axis: Axes = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the smallest element over some dimensions, all by default.

    Args:
        x: numbers of any shape.
        axis: the dimension, or several; None for all.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        The dtype of x; the shape of x without these dimensions.

    Raises:
        ShapeError: there are no elements, or booleans; a dimension does not exist, or is named
            twice.

    >>> min(backend.array([[1.0, 5.0], [4.0, 2.0]]), 1).numpy()
    array([1., 2.], dtype=float32)
    """
    keepdims = read_flag(keepdims, "min's keepdims")
    return apply_one(Min(read_axes(axis, x.ndim, "min"), keepdims), x)


def any(x: AnyOperand, axis: Axes = None, *, keepdims: bool = False) -> AnyOperand:
    """Return whether any element is true (or not 0) over some dimensions, all by default.

    Args:
        x: booleans or numbers of any shape.
        axis: the dimension, or several; None for all.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        Booleans; the shape of x without these dimensions.

    Raises:
        ShapeError: a dimension does not exist, or is named twice.

    >>> any(backend.array([[True, False], [True, True]]), 1).numpy()
    array([ True,  True])
    """
    keepdims = read_flag(keepdims, "any's keepdims")
    return apply_one(AnyTrue(read_axes(axis, x.ndim, "any"), keepdims), _truth(x))


def all(x: AnyOperand, axis: Axes = None, *, keepdims: bool = False) -> AnyOperand:
    """Return whether all elements are true (or not 0) over some dimensions, all by default.

    Args:
        x: booleans or numbers of any shape.
        axis: the dimension, or several; None for all.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        Booleans; the shape of x without these dimensions.

    Raises:
        ShapeError: a dimension does not exist, or is named twice.

    >>> all(backend.array([[True, False], [True, True]]), 1).numpy()
    array([False,  True])
    """
    keepdims = read_flag(keepdims, "all's keepdims")
    return apply_one(AllTrue(read_axes(axis, x.ndim, "all"), keepdims), _truth(x))


def mean(x: AnyOperand, axis: Axes = None, *, keepdims: bool = False) -> AnyOperand:
    """Return the mean over some dimensions, all by default.

    Args:
        x: numbers or booleans of any shape; 16-bit floats are added up in float32.
        axis: the dimension, or several; None for all.
        keepdims: whether these dimensions stay, with size 1.

    Returns:
        The dtype of x, the default float dtype (at least float32) of integers and booleans; the
        shape of x without these dimensions.

    Raises:
        ShapeError: there is nothing to average; a dimension does not exist, or is named twice.

    >>> x = backend.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> mean(x, 1).numpy()
    array([2., 5.], dtype=float32)
    """
    axes, keepdims = read_axes(axis, x.ndim, "mean"), read_flag(keepdims, "mean's keepdims")
    require_elements("mean", x.type, axes)
    count = math.prod(x.shape[i] for i in axes)
    # A sum of 16-bit floats may be out of their range where its mean is not.
    wide = accumulator(x.dtype) if x.dtype.is_float else wide_float(x)
    average: AnyOperand = multiply(sum(cast(x, wide), axes, keepdims=keepdims), 1.0 / count)
    return cast(average, x.dtype) if x.dtype.is_float else average


def total_dtype(dtype: DType) -> DType:
    """Return the dtype of sums and products: int32 for booleans and smaller integers."""
    small = dtype == DType.bool_ or (dtype.is_integer and dtype.itemsize < 4)
    return DType.int32 if small else dtype


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which long sums of a dtype are kept: float32 for 16-bit floats.

    Args:
        dtype: any dtype.

    Returns:
        float32, or the dtype itself.

    >>> accumulator(DType.bfloat16), accumulator(DType.int32)
    (<DType.float32: 'float32'>, <DType.int32: 'int32'>)
    """
    return DType.float32 if dtype.is_float and dtype.itemsize < 4 else dtype


def _truth(x: AnyOperand) -> AnyOperand:
    return x if x.dtype == DType.bool_ else not_equal(x, 0)


def read_axes(axis: Axes, rank: int, what: str) -> tuple[int, ...]:
    """Return the dimensions that `axis=` means, in order; None means all.

    Raises:
        ShapeError: a dimension does not exist, or is named twice.
    """
    if axis is None:
        return tuple(range(rank))
    given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    axes = tuple(sorted(normalize_axis(i, rank, what) for i in given))
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{what} names a dimension twice in {given}; name each once")
    return axes


def require_elements(what: str, x: TensorType, axes: Sequence[int]) -> None:
    if 0 in [x.shape[i] for i in axes]:
        raise ShapeError(
            f"cannot take the {what} of {x} over dimensions {tuple(axes)}; there are no elements"
        )


def _reduction_rule(
    x: TensorType,
    axes: Sequence[int],
    keepdims: bool,
    kind: str,
    linear: tuple[tuple[int, ...], ...] = (),
) -> Rule:
    """Return the rule; `kind` is what splitting a reduced dimension leaves, or `whole`."""
    sizes = {f"d{i}": size for i, size in enumerate(x.shape)}
    dims: FactorDims = tuple((name,) if size > 1 else () for name, size in sizes.items())
    kept: FactorDims = tuple(
        () if i in axes else dim for i, dim in enumerate(dims) if keepdims or i not in axes
    )
    reduced = [f"d{i}" for i in axes]
    if kind == "whole":
        return Rule(sizes, (dims,), (kept,), whole=frozenset(reduced))
    return Rule(sizes, (dims,), (kept,), dict.fromkeys(reduced, kind), linear=linear)


__all__ = [
    "AllTrue", "AnyTrue", "Extremum", "Max", "Min", "Quantifier", "Reduction", "Sum", "accumulator",
    "all", "any", "max", "mean", "min", "sum",
]  # fmt: skip
