"""Convolution over any number of spatial dimensions, and its gradients.

Layouts are PyTorch's: inputs [batch, channels, *spatial], weights [out, in / groups, *window].
The three convolution ops are each other's gradients, so they can be differentiated any number of
times. Batch, groups and both kinds of channels may be split.

A spatial dimension may be split where it has as many rows as windows, each a stride long: with
padding that keeps the size, or windows that lie side by side. Devices then exchange the rows that
windows at the edges of parts reach (`mithril.ops.halo`). Other spatial dimensions are whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.halo import (
    exchange_rows,
    fetch,
    find_reaching,
    find_shared,
    put_pads,
    spatial_dims,
    widen_gradient,
)
from mithril.ops.reading import read_integer
from mithril.ops.windows import (
    Padding,
    PaddingArgument,
    Sizes,
    Widths,
    read_padding,
    read_sizes,
    read_widths,
)
from mithril.types import Shape, TensorType, promote


@dataclass(frozen=True)
class Convolving(Op):
    """Base of the convolution ops: the attributes, and what input, weight and result share."""

    stride: Shape
    padding: Padding
    dilation: Shape
    groups: int

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        op = self if self.groups == 1 else replace(self, groups=shard.size("g"))
        operands: list[Any] = list(inputs)
        extents = self._extents(inputs[1].shape[2:])
        for i in find_shared(find_reaching(extents, self.stride, self.padding), shard):
            operands[0], pads = self._widen(operands[0], i, extents[i], shard)
            op = replace(op, padding=put_pads(op.padding, i, pads))
        return shard.apply(op.resize(shard.outputs), *operands)

    def _extents(self, window: Shape) -> Shape:
        """Return over how many rows the windows reach, given the spatial sizes of operand 1."""
        return _extents(self.dilation, window)

    def _widen(self, x: Any, i: int, extent: int, shard: Shard) -> tuple[Any, tuple[int, int]]:
        """Return operand 0 with all rows that a part needs, and how the part is padded then."""
        step, before = self.stride[i], self.padding[i][0]
        high = x.shape[i + 2] - step + extent - before
        return fetch(x, i, shard, (-before, high), operand=0), (0, 0)

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
        extents = self._extents(w.shape[2:])
        spatial = result_sizes("convolution", x, extents, self.stride, self.padding)
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
        check_attributes("convolution", x, self.stride, self.padding, self.dilation)
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
        types = dict(zip(order, (*inputs, *outputs), strict=True))
        window = types["w"].shape[2:]
        rows, windows, sizes, whole = spatial_dims(
            types["x"].shape[2:], types["y"].shape[2:], self.stride
        )
        k = [f"k{i}" for i in range(len(window))]
        many = self.groups > 1
        sides = {
            "x": f"b {'(g i)' if many else 'i'} {' '.join(rows)}",
            "w": f"{'(g o)' if many else 'o'} i {' '.join(k)}",
            "y": f"b {'(g o)' if many else 'o'} {' '.join(windows)}",
        }
        first, second, result = (sides[letter] for letter in order)
        rule = Rule.parse(
            f"{first}, {second} -> {result}",
            inputs,
            outputs,
            whole=[*whole, *k],
            linear=((0,), (1,)),
            sizes={"g": self.groups, **sizes} if many else sizes,
        )
        extents = self._extents(window)
        return exchange_rows(rule, find_reaching(extents, self.stride, self.padding))


@register
@dataclass(frozen=True)
class Convolution(Convolving):
    """The sum over a window that slides over the input, weighted per output channel.

    Operands (x, weight): x is [batch, channels, *spatial], the weight [out, channels / groups,
    *window], which is not turned round, the result [batch, out, *spatial]. One to three spatial
    dimensions are tried; each has a stride, (before, after) of zeros as padding, and a dilation.
    """

    name: ClassVar[str] = "convolution"

    def infer(self, inputs: Types) -> Types:
        return [self._result(*inputs)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (x, w), g = inputs, _take_cotangent(cotangents)
        slope = apply_one(self.weight_gradient(w.shape[2:]), x, g)  # first: x may go then
        return [apply_one(self.input_gradient(x.shape[2:]), g, w), slope]

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

    def resize(self, outputs: Types) -> Op:
        return replace(self, size=outputs[0].shape[2:])

    def _widen(self, x: Any, i: int, extent: int, shard: Shard) -> tuple[Any, tuple[int, int]]:
        return widen_gradient(x, i, extent, self.stride[i], self.padding[i][0], shard)

    def infer(self, inputs: Types) -> Types:
        dy, w = inputs
        x = w.with_shape((dy.shape[0], w.shape[1] * self.groups, *self.size))
        check_cotangent(self.name, dy, self._result(x, w))
        return [x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (dy, w), g = inputs, _take_cotangent(cotangents)
        slope = apply_one(self.weight_gradient(w.shape[2:]), g, dy)  # first: dy may go then
        return [apply_one(self.forward(), g, w), slope]

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

    def _extents(self, window: Shape) -> Shape:
        del window
        return super()._extents(self.size)

    def infer(self, inputs: Types) -> Types:
        x, dy = inputs
        w = x.with_shape((dy.shape[1], x.shape[1] // self.groups, *self.size))
        check_cotangent(self.name, dy, self._result(x, w))
        return [w]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (x, dy), g = inputs, _take_cotangent(cotangents)
        return [
            apply_one(self.input_gradient(x.shape[2:]), dy, g),
            apply_one(self.forward(), x, g),
        ]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return self._rule("xyw", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return _cost(inputs[1], outputs[0], inputs, outputs)


# ------------------------------------------------------------------ functions over operands


def convolution(
    x: Any,
    w: Any,
    *,
    stride: Sizes = 1,
    padding: PaddingArgument = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution (in mathematics: correlation) of an input with a weight.

    Args:
        x: input [batch, channels, *spatial], of a float dtype.
        w: weight [out, channels / groups, *window]; both are promoted to one dtype.
        stride: step of the window, for all or for each spatial dimension.
        padding: zeros around the input: a number for all spatial dimensions; for each of them a
            number or (before, after); "valid" for none; or "same" for ceil(size / stride) elements
            in the result.
        dilation: step between the elements of the window.
        groups: number of groups of channels that are convolved separately.

    Returns:
        [batch, out, *spatial], of that dtype; each spatial size is (size + before + after -
        dilation * (window - 1) - 1) // stride + 1.

    Raises:
        ShapeError: input, weight and attributes do not fit, or do not hold floats.
        OptionError: the padding is another word.

    >>> x, w = backend.array([[[1.0, 2.0, 4.0, 8.0]]]), backend.array([[[1.0, -1.0]]])
    >>> convolution(x, w).numpy()
    array([[[-1., -2., -4.]]], dtype=float32)
    """
    dtype, rank = promote(x.dtype, w.dtype), x.ndim - 2
    steps = read_sizes(stride, rank, "convolution's stride")
    gaps = read_sizes(dilation, rank, "convolution's dilation")
    extents = _extents(gaps, w.shape[2:]) if x.ndim == w.ndim else ()
    pads = read_padding(padding, x.shape[2:], extents, steps, "convolution's padding")
    op = Convolution(steps, pads, gaps, read_integer(groups, "convolution's groups"))
    return apply_one(op, x.astype(dtype), w.astype(dtype))


def conv_transpose(
    x: Any,
    w: Any,
    *,
    stride: Sizes = 1,
    padding: Widths = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Return the transpose of a convolution: what it maps back to the sizes of its input.

    Zeiler et al., "Deconvolutional networks", 2010; also called fractionally strided convolution.

    Args:
        x: input [batch, channels, *spatial], of a float dtype.
        w: weight [channels, out / groups, *window]; both are promoted to one dtype.
        stride: how far apart elements of the input count, for all or for each spatial dimension.
        padding: how much is cut off around the result: a number for all spatial dimensions, or for
            each of them a number or (before, after).
        output_padding: elements more behind the result, less than the stride: several sizes have a
            convolution of one size.
        dilation: step between the elements of the window.
        groups: number of groups of channels that are convolved separately.

    Returns:
        [batch, out, *spatial], of that dtype; each spatial size is (size - 1) * stride - before -
        after + dilation * (window - 1) + output_padding + 1.

    Raises:
        ShapeError: input, weight and attributes do not fit, or do not hold floats.

    >>> x, w = backend.array([[[1.0, 2.0]]]), backend.array([[[1.0, 10.0, 100.0]]])
    >>> conv_transpose(x, w, stride=2).numpy()
    array([[[  1.,  10., 102.,  20., 200.]]], dtype=float32)
    """
    dtype, rank = promote(x.dtype, w.dtype), x.ndim - 2
    if x.ndim != w.ndim or rank < 1 or x.shape[1] != w.shape[0]:
        raise ShapeError(
            f"conv_transpose takes an input [batch, channels, *spatial] and a weight [channels, "
            f"out / groups, *window] of one rank, not {x.type} and {w.type}; make them fit"
        )
    steps, gaps, more = (
        read_sizes(value, rank, f"conv_transpose's {what}")
        for what, value in (
            ("stride", stride), ("dilation", dilation), ("output_padding", output_padding)
        )
    )  # fmt: skip
    pads = read_widths(padding, rank, "conv_transpose's padding")
    groups = read_integer(groups, "conv_transpose's groups")
    if any(not 0 <= extra < step for extra, step in zip(more, steps, strict=True)):
        raise ShapeError(
            f"conv_transpose has output_padding {more} with stride {steps}; choose less than the "
            f"stride"
        )
    size = tuple(
        (n - 1) * step - sum(pad) + gap * (k - 1) + extra + 1
        for n, step, pad, gap, k, extra in zip(
            x.shape[2:], steps, pads, gaps, w.shape[2:], more, strict=True
        )
    )
    if min(size) < 1:
        raise ShapeError(
            f"conv_transpose of {x.type} with weight {w.type} has spatial sizes {size}; pad by "
            f"less than {pads}"
        )
    op = ConvolutionInputGradient(steps, pads, gaps, groups, size)
    return apply_one(op, x.astype(dtype), w.astype(dtype))


# ------------------------------------------------------------------ shared pieces


def check_attributes(
    what: str, x: TensorType, stride: Shape, padding: Padding, steps: Shape
) -> None:
    """Raise a ShapeError unless the attributes are possible for the spatial dimensions of x."""
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


def result_sizes(
    what: str, x: TensorType, extents: Shape, stride: Shape, padding: Padding
) -> Shape:
    """Return the spatial sizes of a result.

    Raises:
        ShapeError: a window is larger than the padded input.
    """
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


def check_cotangent(what: str, given: TensorType, expected: TensorType) -> None:
    """Raise a ShapeError unless a cotangent has the type of the result."""
    if given != expected:
        raise ShapeError(f"{what} gets {given} where the result is {expected}; pass its type")


def _extents(dilation: Shape, window: Shape) -> Shape:
    """Return how many elements a window spans, those that it leaves out included."""
    return tuple(gap * (size - 1) + 1 for gap, size in zip(dilation, window, strict=True))


def _cost(y: TensorType, w: TensorType, inputs: Types, outputs: Types) -> Cost:
    """One multiplication and one addition per result element and element of its window."""
    flops = 2 * y.size * math.prod(w.shape[1:])
    windows = y.shape[0] * math.prod(y.shape[2:])
    return Cost(flops, sum(t.nbytes for t in (*inputs, *outputs)), windows)


def _take_cotangent(cotangents: Cotangents) -> Any:
    return cotangents[0]


__all__ = [
    "Convolution", "ConvolutionInputGradient", "ConvolutionWeightGradient", "conv_transpose",
    "convolution",
]  # fmt: skip
