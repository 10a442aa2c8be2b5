"""Convolution and max pooling over any number of spatial dimensions, and their gradients.

Layouts are PyTorch's: inputs [batch, channels, *spatial], weights [out, in / groups, *window].
The three convolution ops are each other's gradients, so they can be differentiated any number of
times. Batch, groups and both kinds of channels may be split; spatial dimensions are whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import GraphError, ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.types import Shape, TensorType, promote

Padding = tuple[tuple[int, int], ...]
Widths = int | Sequence[int | tuple[int, int]]


@dataclass(frozen=True)
class Convolving(Op):
    """Base of the convolution ops: the attributes, and what input, weight and result share."""

    stride: Shape
    padding: Padding
    dilation: Shape
    groups: int

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        op = self if self.groups == 1 else replace(self, groups=shard.size("g"))
        return shard.apply(op, *inputs)

    def forward(self) -> Convolution:
        """Return the convolution with these attributes."""
        return Convolution(self.stride, self.padding, self.dilation, self.groups)

    def input_gradient(self, size: Shape) -> ConvolutionInputGradient:
        """Return the op that gives the gradient of an input of these spatial sizes."""
        return ConvolutionInputGradient(self.stride, self.padding, self.dilation, self.groups, size)

    def weight_gradient(self, size: Shape) -> ConvolutionWeightGradient:
        """Return the op that gives the gradient of a weight of this window."""
        return ConvolutionWeightGradient(
            self.stride, self.padding, self.dilation, self.groups, size
        )

    def _result(self, x: TensorType, w: TensorType) -> TensorType:
        self._check(x, w)
        extents = [d * (k - 1) + 1 for d, k in zip(self.dilation, w.shape[2:], strict=True)]
        spatial = _result_sizes("convolution", x, tuple(extents), self.stride, self.padding)
        return x.with_shape((x.shape[0], w.shape[0], *spatial))

    def _check(self, x: TensorType, w: TensorType) -> None:
        if x.rank != w.rank or x.rank < 3:
            raise ShapeError(
                f"convolution takes an input [batch, channels, *spatial] and a weight [out, "
                f"in / groups, *window] of one rank, not {x} and {w}; add the missing dimensions"
            )
        if x.dtype != w.dtype or not x.dtype.is_float:
            raise ShapeError(
                f"convolution needs equal float dtypes, not {x} and {w}; cast one side"
            )
        _check_attributes("convolution", x, self.stride, self.padding, self.dilation)
        if self.groups < 1 or w.shape[0] % self.groups:
            raise ShapeError(
                f"convolution has {w.shape[0]} output channels in {self.groups} groups; choose a "
                f"number of groups that divides them"
            )
        if x.shape[1] != w.shape[1] * self.groups:
            raise ShapeError(
                f"convolution of {x} has {x.shape[1]} input channels, but weight {w} with "
                f"{self.groups} groups takes {w.shape[1] * self.groups}; make them equal"
            )

    def _rule(self, order: str, inputs: Types, outputs: Types) -> Rule:
        """Return the rule of an op whose operands and result are x, w, y in this order."""
        spatial = range(len(self.stride))
        s, k, t = (" ".join(f"{letter}{i}" for i in spatial) for letter in "skt")
        many = self.groups > 1
        sides = {
            "x": f"b {'(g i)' if many else 'i'} {s}",
            "w": f"{'(g o)' if many else 'o'} i {k}",
            "y": f"b {'(g o)' if many else 'o'} {t}",
        }
        first, second, result = (sides[letter] for letter in order)
        return Rule.parse(
            f"{first}, {second} -> {result}",
            inputs,
            outputs,
            whole=f"{s} {k} {t}".split(),
            linear=((0,), (1,)),
            sizes={"g": self.groups} if many else {},
        )


@register
@dataclass(frozen=True)
class Convolution(Convolving):
    """The sum over a window that slides over the input, weighted per output channel."""

    name: ClassVar[str] = "convolution"

    def infer(self, inputs: Types) -> Types:
        return [self._result(*inputs)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (x, w), g = inputs, _given(cotangents)
        return [
            apply_one(self.input_gradient(x.shape[2:]), g, w),
            apply_one(self.weight_gradient(w.shape[2:]), x, g),
        ]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return self._rule("xwy", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return _cost(outputs[0], inputs[1], inputs, outputs)


@register
@dataclass(frozen=True)
class ConvolutionInputGradient(Convolving):
    """The gradient of a convolution's input with spatial sizes `size`; operands (dy, weight)."""

    name: ClassVar[str] = "convolution_input_gradient"
    size: Shape

    def infer(self, inputs: Types) -> Types:
        dy, w = inputs
        x = w.with_shape((dy.shape[0], w.shape[1] * self.groups, *self.size))
        _check_cotangent(self.name, dy, self._result(x, w))
        return [x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (dy, w), g = inputs, _given(cotangents)
        return [
            apply_one(self.forward(), g, w),
            apply_one(self.weight_gradient(w.shape[2:]), g, dy),
        ]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return self._rule("ywx", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return _cost(inputs[0], inputs[1], inputs, outputs)


@register
@dataclass(frozen=True)
class ConvolutionWeightGradient(Convolving):
    """The gradient of a convolution's weight with window `size`; operands (x, dy)."""

    name: ClassVar[str] = "convolution_weight_gradient"
    size: Shape

    def infer(self, inputs: Types) -> Types:
        x, dy = inputs
        w = x.with_shape((dy.shape[1], x.shape[1] // self.groups, *self.size))
        _check_cotangent(self.name, dy, self._result(x, w))
        return [w]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (x, dy), g = inputs, _given(cotangents)
        return [
            apply_one(self.input_gradient(x.shape[2:]), dy, g),
            apply_one(self.forward(), x, g),
        ]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return self._rule("xyw", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return _cost(inputs[1], outputs[0], inputs, outputs)


@dataclass(frozen=True)
class Pooling(Op):
    """Base of the pooling ops: a window that slides over every channel by itself."""

    what: ClassVar[str] = "max_pool"
    """What messages call it."""
    window: Shape
    stride: Shape
    padding: Padding

    def _result(self, x: TensorType) -> TensorType:
        if x.rank < 3 or not (x.dtype.is_float or x.dtype.is_integer):
            raise ShapeError(
                f"{self.what} takes numbers of shape [batch, channels, *spatial], not {x}; add "
                f"the missing dimensions or cast it"
            )
        _check_attributes(self.what, x, self.stride, self.padding, self.window)
        if any(max(pad) >= size for pad, size in zip(self.padding, self.window, strict=True)):
            raise ShapeError(
                f"{self.what} has padding {self.padding} for window {self.window}; pad by less "
                f"than the window, so that every window meets the input"
            )
        spatial = _result_sizes(self.what, x, self.window, self.stride, self.padding)
        return x.with_shape((*x.shape[:2], *spatial))

    def _sides(self) -> tuple[str, str, list[str]]:
        s = [f"s{i}" for i in range(len(self.window))]
        t = [f"t{i}" for i in range(len(self.window))]
        return f"b c {' '.join(s)}", f"b c {' '.join(t)}", [*s, *t]


@register
@dataclass(frozen=True)
class MaxPool(Pooling):
    """The largest element of a window that slides over the input; padding never wins."""

    name: ClassVar[str] = "max_pool"

    def infer(self, inputs: Types) -> Types:
        return [self._result(inputs[0])]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        op = MaxPoolGradient(self.window, self.stride, self.padding)
        return [apply_one(op, inputs[0], outputs[0], _given(cotangents))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        x, y, whole = self._sides()
        return Rule.parse(f"{x} -> {y}", inputs, outputs, whole=whole)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        flops = outputs[0].size * math.prod(self.window)
        return Cost(flops, inputs[0].nbytes + outputs[0].nbytes)


@register
@dataclass(frozen=True)
class MaxPoolGradient(Pooling):
    """The gradient of a max pool's input, given to each window's first maximum; (x, y, dy)."""

    name: ClassVar[str] = "max_pool_gradient"

    def infer(self, inputs: Types) -> Types:
        x, y, dy = inputs
        expected = self._result(x)
        _check_cotangent(self.name, y, expected)
        _check_cotangent(self.name, dy, expected)
        return [x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        raise GraphError(
            "max_pool has no second derivative here; differentiate it once, or pool with mean()"
        )

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        x, y, whole = self._sides()
        return Rule.parse(f"{x}, {y}, {y} -> {x}", inputs, outputs, whole=whole, linear=((2,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        flops = 2 * inputs[1].size * math.prod(self.window)
        return Cost(flops, sum(t.nbytes for t in (*inputs, *outputs)))


# ------------------------------------------------------------------ functions over operands


def convolution(
    x: Any,
    w: Any,
    *,
    stride: int | Sequence[int] = 1,
    padding: Widths = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution (in mathematics: correlation) of an input with a weight.

    Args:
        x: input [batch, channels, *spatial], of a float dtype.
        w: weight [out, channels / groups, *window]; both are promoted to one dtype.
        stride: step of the window, for all or for each spatial dimension.
        padding: zeros around the input: a number for all spatial dimensions, or for each of them a
            number or (before, after).
        dilation: step between the elements of the window.
        groups: number of groups of channels that are convolved separately.

    Raises:
        ShapeError: input, weight and attributes do not fit.
    """
    dtype, rank = promote(x.dtype, w.dtype), x.ndim - 2
    op = Convolution(
        each("stride", stride, rank),
        pairs(padding, rank),
        each("dilation", dilation, rank),
        groups,
    )
    return apply_one(op, x.astype(dtype), w.astype(dtype))


def max_pool(
    x: Any,
    window: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: Widths = 0,
) -> Any:
    """Return the largest element of every window of an input.

    Args:
        x: input [batch, channels, *spatial].
        window: sizes of the window, for all or for each spatial dimension.
        stride: step of the window; by default the window itself.
        padding: what to add around the input, as for `convolution`; it never wins.

    Raises:
        ShapeError: input and attributes do not fit.
    """
    rank = x.ndim - 2
    sizes = each("window", window, rank)
    steps = sizes if stride is None else each("stride", stride, rank)
    return apply_one(MaxPool(sizes, steps, pairs(padding, rank)), x)


# ------------------------------------------------------------------ shared pieces


def each(what: str, value: int | Sequence[int], rank: int) -> Shape:
    """Return one number for each spatial dimension.

    Raises:
        ShapeError: another number of them is given.
    """
    sizes = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(sizes) != rank:
        raise ShapeError(
            f"{what} {sizes} is given for {len(sizes)} spatial dimensions, the input has {rank}; "
            f"give one number for each"
        )
    return sizes


def pairs(padding: Widths, rank: int) -> Padding:
    """Return padding (before, after) for each spatial dimension.

    Raises:
        ShapeError: it is given for another number of them.
    """
    widths = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    pairs = tuple((w, w) if isinstance(w, int) else (w[0], w[1]) for w in widths)
    if len(pairs) != rank:
        raise ShapeError(
            f"padding {pairs} is given for {len(pairs)} spatial dimensions, the input has {rank}; "
            f"give one number or (before, after) for each"
        )
    return pairs


def _check_attributes(
    what: str, x: TensorType, stride: Shape, padding: Padding, steps: Shape
) -> None:
    lengths = {len(stride), len(padding), len(steps)}
    if lengths != {x.rank - 2}:
        raise ShapeError(
            f"{what} of {x} has attributes for {sorted(lengths)} spatial dimensions; give one for "
            f"each of the {x.rank - 2}"
        )
    if min((*stride, *steps)) < 1 or min(min(pair) for pair in padding) < 0:
        raise ShapeError(
            f"{what} has stride {stride}, {'window' if what.endswith('pool') else 'dilation'} "
            f"{steps} and padding {padding}; steps must be 1 or more, padding 0 or more"
        )


def _result_sizes(
    what: str, x: TensorType, extents: Shape, stride: Shape, padding: Padding
) -> Shape:
    sizes = tuple(
        (size + before + after - extent) // step + 1
        for size, (before, after), extent, step in zip(
            x.shape[2:], padding, extents, stride, strict=True
        )
    )
    if min(sizes) < 1:
        raise ShapeError(
            f"{what} of {x} has a window of extent {extents}, larger than the input padded by "
            f"{padding}; use a smaller window or more padding"
        )
    return sizes


def _check_cotangent(what: str, given: TensorType, expected: TensorType) -> None:
    if given != expected:
        raise ShapeError(f"{what} gets {given} where the result is {expected}; pass its type")


def _cost(y: TensorType, w: TensorType, inputs: Types, outputs: Types) -> Cost:
    """One multiplication and one addition per result element and element of its window."""
    flops = 2 * y.size * math.prod(w.shape[1:])
    return Cost(flops, sum(t.nbytes for t in (*inputs, *outputs)))


def _given(cotangents: Cotangents) -> Any:
    return cotangents[0]


__all__ = [
    "Convolution", "ConvolutionInputGradient", "ConvolutionWeightGradient", "MaxPool",
    "MaxPoolGradient", "convolution", "max_pool",
]  # fmt: skip
