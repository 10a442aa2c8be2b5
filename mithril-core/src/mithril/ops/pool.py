"""Mean pooling over any number of spatial dimensions, and its gradient.

Layouts are those of convolution: [batch, channels, *spatial]; spatial dimensions are whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.conv import Pooling, Widths, each, pairs
from mithril.types import Shape, TensorType


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
        padding: zeros around the input, as for `convolution`.
        count_padding: whether these zeros count, as in PyTorch by default.

    Raises:
        ShapeError: input and attributes do not fit.
    """
    rank = x.ndim - 2
    sizes = each("window", window, rank)
    steps = sizes if stride is None else each("stride", stride, rank)
    return apply_one(AvgPool(sizes, steps, pairs(padding, rank), bool(count_padding)), x)


def window_sizes(op: MeanPooling, x: TensorType, y: TensorType) -> list[list[int]]:
    """Return, for each spatial dimension, how many elements each window averages."""
    counts = []
    for size, out, window, step, (before, _) in zip(
        x.shape[2:], y.shape[2:], op.window, op.stride, op.padding, strict=True
    ):
        starts = [i * step - before for i in range(out)]
        real = [min(start + window, size) - max(start, 0) for start in starts]
        counts.append([window] * out if op.count_padding else real)
    return counts


__all__ = ["AvgPool", "AvgPoolGradient", "MeanPooling", "avg_pool", "window_sizes"]
