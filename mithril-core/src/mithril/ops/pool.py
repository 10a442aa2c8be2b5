"""Pooling over any number of spatial dimensions: the largest element or the mean of a window.

Layouts are those of convolution: [batch, channels, *spatial]. So are the spatial dimensions that
may be split, and what devices exchange then. Of means that leave padding out those are whole that
are padded: the devices at their ends would have to divide by other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from mithril.errors import GraphError, ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.arithmetic import maximum
from mithril.ops.choice import equal, less, where
from mithril.ops.conv import check_attributes, check_cotangent, result_sizes
from mithril.ops.halo import (
    exchange_rows,
    fetch,
    find_reaching,
    find_shared,
    put_pads,
    spatial_dims,
    widen_gradient,
    windows_beside,
)
from mithril.ops.index import iota
from mithril.ops.reading import read_flag
from mithril.ops.windows import Padding, PaddingArgument, Sizes, read_padding, read_sizes
from mithril.types import DType, Scalar, Shape, TensorType


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

    def _find_reaching(self) -> list[int]:
        """Return the spatial dimensions in which windows meet rows beside those of their step."""
        return find_reaching(self.window, self.stride, self.padding)

    def _sliding(self, x: TensorType, order: str, inputs: Types, outputs: Types) -> Rule:
        """Return the rule of an op whose operands and result lie like x and y in this order."""
        y = self._result(x)
        rows, windows, sizes, whole = spatial_dims(x.shape[2:], y.shape[2:], self.stride)
        sides = {"x": f"b c {' '.join(rows)}", "y": f"b c {' '.join(windows)}"}
        *operands, result = (sides[letter] for letter in order)
        text = f"{', '.join(operands)} -> {result}"
        rule = Rule.parse(text, inputs, outputs, whole=whole, sizes=sizes)
        return exchange_rows(rule, self._find_reaching())

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x: Any = inputs[0]
        op = self
        for i in find_shared(self._find_reaching(), shard):
            x, pads = self._widen(x, i, shard)
            op = replace(op, padding=put_pads(op.padding, i, pads))
        return shard.apply(op.resize(shard.outputs), x)

    def _widen(self, x: Any, i: int, shard: Shard) -> tuple[Any, tuple[int, int]]:
        """Return an operand with all rows that a part needs, and how the part is padded then."""
        before = self.padding[i][0]
        high = x.shape[i + 2] - self.stride[i] + self.window[i] - before
        return fetch(x, i, shard, (-before, high), 0, self._fill(x.dtype)), (0, 0)

    def _fill(self, dtype: DType) -> Scalar:
        """Return what padding holds."""
        del dtype
        return 0


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
        rule = self._sliding(inputs[0], "xy", inputs, outputs)
        return replace(rule, reductions=dict.fromkeys(rule.special, "max"))

    def _fill(self, dtype: DType) -> Scalar:
        return lowest(dtype)

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
        return replace(self._sliding(inputs[0], "xyyx", inputs, outputs), linear=((2,),))

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        operands: list[Any] = list(inputs)
        op, own = self, [slice(None)] * operands[0].ndim
        shared = find_shared(self._find_reaching(), shard)
        if any(self.padding[i][0] for i in shared):
            operands[:2] = map(_lift_lowest, operands[:2])
        for i in shared:
            operands, own[i + 2] = self._widen_all(operands, i, shard)
            op = replace(op, padding=put_pads(op.padding, i, (0, 0)))
        slopes: Any = shard.apply(op, *operands)[0]
        return [slopes] if op is self else [slopes[tuple(own)]]

    def _widen_all(self, operands: Sequence[Any], i: int, shard: Shard) -> tuple[list[Any], slice]:
        """Return all windows that meet rows of a part, with all rows of these, and which are own.

        No window finds its largest element in the padding, where stands what is below all of x.
        """
        (x, *given), step, before = operands, self.stride[i], self.padding[i][0]
        rows, windows = x.shape[i + 2], given[0].shape[i + 2]
        low, high = windows_beside(self.window[i], step, before)
        first = low * step + before
        last = max((windows + high - 1) * step + self.window[i] - before, rows)
        fill = lowest(x.dtype)
        count: Any = shard.count(f"t{i}")
        if count is not None:  # zeros are behind the rows of a part, and there is one a window
            line = tuple(n if axis == i + 2 else 1 for axis, n in enumerate(x.shape))
            x = where(less(iota(x, line, i + 2), count), x, x._constant(fill, x.dtype))
        found = fetch(x, i, shard, (-first, last), 0, fill)
        beside = (-low, windows + high)
        ones = [fetch(y, i, shard, beside, n) for n, y in enumerate(given, 1)]
        return [found, *ones], slice(first, first + rows)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        flops = 2 * inputs[1].size * math.prod(self.window)
        return Cost(flops, sum(t.nbytes for t in (*inputs, *outputs)))


@dataclass(frozen=True)
class MeanPooling(Pooling):
    """Base of mean pooling and its gradient; padding counts as zeros, or not at all."""

    what: ClassVar[str] = "avg_pool"
    count_padding: bool

    def _rule(self, order: str, inputs: Types, outputs: Types) -> Rule:
        x = {"xy": inputs, "yx": outputs}[order][0]
        rule = self._sliding(x, order, inputs, outputs)
        padded = {f"t{i}" for i, pads in enumerate(self.padding) if pads != (0, 0)}
        whole = frozenset() if self.count_padding else padded & set(rule.factors)
        return replace(rule, whole=rule.whole | whole, special=rule.special - whole, linear=((0,),))


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

    def resize(self, outputs: Types) -> Op:
        return replace(self, size=outputs[0].shape[2:])

    def _widen(self, x: Any, i: int, shard: Shard) -> tuple[Any, tuple[int, int]]:
        return widen_gradient(x, i, self.window[i], self.stride[i], self.padding[i][0], shard)

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


def lowest(dtype: DType) -> Scalar:
    """Return what every number of a dtype is at least."""
    return -math.inf if dtype.is_float else int(np.iinfo(str(dtype)).min)


def _lift_lowest(x: Any) -> Any:
    """Return floats with -inf as their lowest finite number, above what padding holds.

    So a window in which nothing is above -inf gives its gradient to an element of the input, as on
    one device. Room is made by the lowest finite number and the next one, which become one.
    """
    if not x.dtype.is_float:
        return x  # no gradient flows
    limits: Any = ml_dtypes.finfo
    least = limits(x.dtype.numpy).min
    second = np.nextafter(least, np.zeros((), x.dtype.numpy))
    return where(equal(x, -math.inf), float(least), maximum(x, float(second)))


def max_pool(
    x: Any,
    window: Sizes,
    *,
    stride: Sizes | None = None,
    padding: PaddingArgument = 0,
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
        OptionError: the padding is a word that does not exist.

    >>> max_pool(backend.array([[[1.0, 5.0, 2.0, 4.0]]]), 2).numpy()
    array([[[5., 4.]]], dtype=float32)
    """
    return apply_one(MaxPool(*_read_windows("max_pool", x, window, stride, padding)), x)


def avg_pool(
    x: Any,
    window: Sizes,
    *,
    stride: Sizes | None = None,
    padding: PaddingArgument = 0,
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
        OptionError: the padding is a word that does not exist, or `count_padding` no flag.

    >>> avg_pool(backend.array([[[1.0, 5.0, 2.0, 4.0]]]), 2).numpy()
    array([[[3., 3.]]], dtype=float32)
    """
    windows = _read_windows("avg_pool", x, window, stride, padding)
    return apply_one(AvgPool(*windows, read_flag(count_padding, "avg_pool's count_padding")), x)


def _read_windows(
    what: str,
    x: Any,
    window: Sizes,
    stride: Sizes | None,
    padding: PaddingArgument,
) -> tuple[Shape, Shape, Padding]:
    """Return sizes, steps and padding of windows, for each spatial dimension."""
    sizes = read_sizes(window, x.ndim - 2, f"{what}'s window")
    steps = sizes if stride is None else read_sizes(stride, x.ndim - 2, f"{what}'s stride")
    return sizes, steps, read_padding(padding, x.shape[2:], sizes, steps, f"{what}'s padding")


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
