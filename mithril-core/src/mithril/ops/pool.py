"""Pooling over any number of spatial dimensions: the largest element or the mean of a window.

Layouts are those of convolution: [batch, channels, *spatial]; spatial dimensions are whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import GraphError, ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.conv import (
    Padding,
    Widths,
    check_attributes,
    check_cotangent,
    each,
    pairs,
    result_sizes,
)
from mithril.types import Shape, TensorType


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
        check_attributes(self.what, x, self.stride, self.padding, self.window)
        if any(max(pad) >= size for pad, size in zip(self.padding, self.window, strict=True)):
            raise ShapeError(
                f"{self.what} has padding {self.padding} for window {self.window}; pad by less "
                f"than the window, so that every window meets the input"
            )
        spatial = result_sizes(self.what, x, self.window, self.stride, self.padding)
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
        return [apply_one(op, inputs[0], outputs[0], cotangents[0])]  # type: ignore[type-var]

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
        check_cotangent(self.name, y, expected)
        check_cotangent(self.name, dy, expected)
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


@dataclass(frozen=True)
class MeanPooling(Pooling):
    """Base of mean pooling and its gradient; padding counts as zeros, or not at all."""

    what: ClassVar[str] = "avg_pool"
    count_padding: bool

    def _rule(self, order: str, inputs: Types, outputs: Types) -> Rule:
        x, y, whole = self._sides()
        text = {"xy": f"{x} -> {y}", "yx": f"{y} -> {x}"}[order]
        return Rule.parse(text, inputs, outputs, whole=whole, linear=((0,),))


@register
@dataclass(frozen=True)
class AvgPool(MeanPooling):
    """The mean of every window of an input."""

    name: ClassVar[str] = "avg_pool"

    def infer(self, inputs: Types) -> Types:
        if not inputs[0].dtype.is_float:
            raise ShapeError(f"avg_pool takes floats, not {inputs[0]}; cast it first")
        return [self._result(inputs[0])]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        back = AvgPoolGradient(
            self.window, self.stride, self.padding, self.count_padding, inputs[0].shape[2:]
        )
        return [apply_one(back, cotangents[0])]  # type: ignore[type-var]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return self._rule("xy", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(outputs[0].size * math.prod(self.window), inputs[0].nbytes + outputs[0].nbytes)


@register
@dataclass(frozen=True)
class AvgPoolGradient(MeanPooling):
    """The cotangent of the input of mean pooling, from that of its result."""

    name: ClassVar[str] = "avg_pool_gradient"
    size: Shape

    def infer(self, inputs: Types) -> Types:
        dy = inputs[0]
        x = dy.with_shape((*dy.shape[:2], *self.size))
        expected = self._result(x)
        if dy != expected:
            raise ShapeError(
                f"avg_pool_gradient gets {dy} where the result is {expected}; pass its type"
            )
        return [x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        forward = AvgPool(self.window, self.stride, self.padding, self.count_padding)
        return [apply_one(forward, cotangents[0])]  # type: ignore[type-var]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return self._rule("yx", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(inputs[0].size * math.prod(self.window), inputs[0].nbytes + outputs[0].nbytes)


def max_pool(
    x: Any,
    window: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: Widths = 0,
) -> Any:
    """Return the largest element of every window of an input.

    Args:
        x: numbers [batch, channels, *spatial].
        window: sizes of the window, for all or for each spatial dimension.
        stride: step of the window; by default the window itself.
        padding: what to add around the input, as for `convolution`, less than the window; it never
            wins.

    Returns:
        [batch, channels, *spatial], of the dtype of x; each spatial size is (size + before + after
        - window) // stride + 1.

    Raises:
        ShapeError: input and attributes do not fit.

    >>> max_pool(backend.array([[[1.0, 5.0, 2.0, 4.0]]]), 2).numpy()
    array([[[5., 4.]]], dtype=float32)
    """
    rank = x.ndim - 2
    sizes = each("window", window, rank)
    steps = sizes if stride is None else each("stride", stride, rank)
    return apply_one(MaxPool(sizes, steps, pairs(padding, rank)), x)


def avg_pool(
    x: Any,
    window: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: Widths = 0,
    count_padding: bool = True,
) -> Any:
    """Return the mean of every window of an input.

    Args:
        x: floats [batch, channels, *spatial].
        window: sizes of the window, for all or for each spatial dimension.
        stride: step of the window; by default the window itself.
        padding: zeros around the input, as for `convolution`, less than the window.
        count_padding: whether these zeros count, as in PyTorch by default.

    Returns:
        [batch, channels, *spatial], of the dtype of x; sizes are those of `max_pool`.

    Raises:
        ShapeError: input and attributes do not fit, or x does not hold floats.

    >>> avg_pool(backend.array([[[1.0, 5.0, 2.0, 4.0]]]), 2).numpy()
    array([[[3., 3.]]], dtype=float32)
    """
    rank = x.ndim - 2
    sizes = each("window", window, rank)
    steps = sizes if stride is None else each("stride", stride, rank)
    return apply_one(AvgPool(sizes, steps, pairs(padding, rank), bool(count_padding)), x)


def window_sizes(op: MeanPooling, x: TensorType, y: TensorType) -> list[list[int]]:
    """Return, for each spatial dimension, how many elements each window averages.

    Args:
        op: a mean pooling.
        x: type of its input [batch, channels, *spatial].
        y: type of its result.

    Returns:
        A list for each spatial dimension, with a number for each place of the result.

    >>> op = AvgPool((2,), (2,), ((1, 1),), count_padding=False)
    >>> x = backend.ones((1, 1, 4)).type
    >>> window_sizes(op, x, op.infer([x])[0])
    [[1, 2, 1]]
    """
    counts = []
    for size, out, window, step, (before, _) in zip(
        x.shape[2:], y.shape[2:], op.window, op.stride, op.padding, strict=True
    ):
        starts = [i * step - before for i in range(out)]
        real = [min(start + window, size) - max(start, 0) for start in starts]
        counts.append([window] * out if op.count_padding else real)
    return counts


__all__ = [
    "AvgPool", "AvgPoolGradient", "MaxPool", "MaxPoolGradient", "MeanPooling", "Pooling",
    "avg_pool", "max_pool", "window_sizes",
]  # fmt: skip
