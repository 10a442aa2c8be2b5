"""Normalisation of each channel over a batch: batch_norm, its gradient, and the pieces of both.

Tensors are [batch, channels, *spatial]; statistics are [channels], in at least float32. The batch
is whole for the fused ops. Where it is split they are expanded into pieces, which cost the devices
one exchange forward, two numbers a channel from each, and one sum backward, of as many.

Variances are never differences of large numbers: each device takes that of its part around the mean
of its part, and they are put together by Chan, Golub and LeVeque, "Updating formulae and a pairwise
algorithm for computing sample variances", 1979.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Group, Op, Shard, Tensors, Types, register
from mithril.ir.operand import Operand, apply, apply_one
from mithril.ir.rule import Rule
from mithril.ops.choice import less, where
from mithril.ops.elementwise import cast
from mithril.ops.expansion import gradient_by_expansion, gradient_of_fused
from mithril.ops.functions import rsqrt
from mithril.ops.index import iota
from mithril.ops.nn import require_float, widen
from mithril.ops.reduce import accumulator, mean, sum
from mithril.ops.shape import broadcast_to, concatenate, reshape
from mithril.types import TensorType, promote

SUMS = 2
"""Of a cotangent, and of it times the distance from the mean."""


@register
@dataclass(frozen=True)
class BatchNorm(Op):
    """x with each channel normalised over the batch, times gain plus bias (Ioffe, Szegedy, 2015).

    Operands (x, gain, bias); results (y, mean, variance, reciprocal standard deviation), all but
    the first of a channel, in at least float32.
    """

    name: ClassVar[str] = "batch_norm"
    epsilon: float

    def infer(self, inputs: Types) -> Types:
        x, gain, bias = inputs
        _check(self.name, x, gain=gain, bias=bias)
        return [x, *[_statistics(x)] * 3]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (x, gain, _), (_, average, _, scale) = inputs, outputs

        def differentiate(g: Any) -> Cotangents:
            return apply(BatchNormGradient(), x, gain, average, scale, g)

        return gradient_of_fused(self, inputs, cotangents, differentiate)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        x, over = _dims(inputs[0])
        return Rule.parse(f"{x}, c, c -> {x}, c, c, c", inputs, outputs, expandable=over)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(8 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        average, variance = apply(ChannelMoments(), inputs[0])
        y = apply_one(NormalizeChannels(self.epsilon), *inputs, average, variance)
        return [y, average, variance, rsqrt(variance + self.epsilon)]


@register
@dataclass(frozen=True)
class BatchNormGradient(Op):
    """The cotangents of batch_norm's operands; operands (x, gain, mean, rstd, cotangent)."""

    name: ClassVar[str] = "batch_norm_gradient"

    def infer(self, inputs: Types) -> Types:
        x, gain = inputs[0], inputs[1]
        return [x, gain, gain]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        x, over = _dims(inputs[0])
        text = f"{x}, c, c, c, {x} -> {x}, c, c"
        return Rule.parse(text, inputs, outputs, expandable=over, linear=((4,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(12 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, gain, average, scale, g = inputs
        sums: Any = apply_one(ChannelSums(), x, average, g)
        op = ChannelGradient(x.type.size // max(1, x.shape[1]))
        dx = apply_one(op, x, gain, average, scale, g, sums)
        return [dx, cast(sums[1] * scale, gain.dtype), cast(sums[0], gain.dtype)]


# ------------------------------------------------------------------ pieces


@register
@dataclass(frozen=True)
class ChannelMoments(Op):
    """The mean and the variance of each channel, in at least float32; the operand is x.

    Devices that share the batch exchange both of their parts, and put them together.
    """

    name: ClassVar[str] = "channel_moments"

    def infer(self, inputs: Types) -> Types:
        _check(self.name, inputs[0])
        return [_statistics(inputs[0])] * 2

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        x, over = _dims(inputs[0])
        exchanged = frozenset(over)
        rule = Rule.parse(f"{x} -> c, c", inputs, outputs)
        return replace(rule, special=exchanged, completed=exchanged)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(4 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        (x,) = inputs
        found = [(0, shard.group("b"))]
        found += [(i + 2, shard.group(f"s{i}")) for i in range(x.ndim - 2)]
        groups = [(dimension, group) for dimension, group in found if group is not None]
        padded = [(i, group) for i, group in groups if len(set(group.parts)) > 1]
        average: Any
        average, variance = _take_moments(x, padded) if padded else shard.apply(self, x)
        for _, group in groups:
            average, variance = _join(average, variance, group)
        return [average, variance]

    def expand(self, inputs: Tensors) -> Tensors:
        (x,) = widen(inputs)
        over = _over(x.type)
        average = mean(x, over)
        away = x - as_column(average, x)
        return [average, mean(away * away, over)]


@register
@dataclass(frozen=True)
class NormalizeChannels(Op):
    """x, less a mean, over the root of a variance, times gain plus bias.

    Operands (x, gain, bias, mean, variance), all but the first one number a channel; the last two
    are of at least float32.
    """

    name: ClassVar[str] = "normalize_channels"
    epsilon: float

    def infer(self, inputs: Types) -> Types:
        x, gain, bias, average, variance = inputs
        _check(self.name, x, gain=gain, bias=bias)
        _check_statistics(self.name, x, average, variance)
        return [x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        x, _ = _dims(inputs[0])
        return Rule.parse(f"{x}, c, c, c, c -> {x}", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(4 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, gain, bias, average, variance = widen(inputs)
        scale = rsqrt(variance + self.epsilon) * gain
        y = (x - as_column(average, x)) * as_column(scale, x) + as_column(bias, x)
        return [cast(y, inputs[0].dtype)]


@register
@dataclass(frozen=True)
class ChannelSums(Op):
    """Of each channel the sum of g, and of g times the distance of x from a mean; [2, channels].

    Operands (x, mean, g); in at least float32.
    """

    name: ClassVar[str] = "channel_sums"

    def infer(self, inputs: Types) -> Types:
        x, average, g = inputs
        _check(self.name, x)
        _check_statistics(self.name, x, average)
        if g != x:
            raise ShapeError(f"channel_sums of {x} has a cotangent {g}; make the types equal")
        return [_statistics(x).with_shape((SUMS, *average.shape))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        x, _ = _dims(inputs[0])
        return Rule.parse(f"{x}, c, {x} -> k c", inputs, outputs, whole=["k"], linear=((2,),))

    def contracts(self, inputs: Types, outputs: Types) -> bool:
        """Return False: these are statistics, which are never taken in a narrower type."""
        return False

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(4 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, average, g = widen(inputs)
        along = sum(g * (x - as_column(average, x)), _over(x.type))
        return [_stack(sum(g, _over(x.type)), along)]


@register
@dataclass(frozen=True)
class ChannelGradient(Op):
    """The cotangent of batch_norm's x, `count` elements a channel, from what `ChannelSums` gives.

    Operands (x, gain, mean, rstd, cotangent, sums).
    """

    name: ClassVar[str] = "channel_gradient"
    count: int

    def infer(self, inputs: Types) -> Types:
        x, gain, average, scale, g, sums = inputs
        _check(self.name, x, gain=gain)
        _check_statistics(self.name, x, average, scale)
        if g != x or sums.shape != (SUMS, *average.shape):
            raise ShapeError(
                f"channel_gradient of {x} has a cotangent {g} and sums {sums}; it needs the "
                f"type of x, and what channel_sums gives"
            )
        return [x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        x, _ = _dims(inputs[0])
        text = f"{x}, c, c, c, {x}, k c -> {x}"
        return Rule.parse(text, inputs, outputs, whole=["k"])

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(6 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        wide: Any = widen(inputs)
        x, gain, average, scale, g, sums = wide
        share = 1.0 / max(1, self.count)
        slope = sums[1] * (scale * scale * share)
        away = x - as_column(average, x)
        dx = g - as_column(sums[0] * share, x) - away * as_column(slope, x)
        return [cast(dx * as_column(scale * gain, x), inputs[0].dtype)]


# ------------------------------------------------------------------ functions over operands


def batch_norm(x: Any, gain: Any, bias: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """Return x with each channel normalised, and the mean and the variance of each channel.

    Args:
        x: [batch, channels, *spatial], of a float dtype.
        gain: [channels].
        bias: [channels].
        epsilon: added to the variance.
    """
    y, average, variance, _ = apply(BatchNorm(float(epsilon)), *promote_floats(x, gain, bias))
    return y, average, variance


def normalize_channels(
    x: Any, gain: Any, bias: Any, average: Any, variance: Any, epsilon: float
) -> Any:
    """Return x with each channel normalised by statistics that are given; see `batch_norm`."""
    x, gain, bias = promote_floats(x, gain, bias)
    wide = [cast(s, accumulator(x.dtype)) for s in (average, variance)]
    return apply_one(NormalizeChannels(float(epsilon)), x, gain, bias, *wide)


def promote_floats(*operands: Operand) -> list[Any]:
    """Return floats in the dtype that they meet in; others as they are, for the op to refuse."""
    dtypes = {x.dtype for x in operands}
    if not all(dtype.is_float for dtype in dtypes):
        return list(operands)
    return [cast(x, reduce(promote, dtypes)) for x in operands]


# ------------------------------------------------------------------ shared pieces


def _check(what: str, x: TensorType, **rows: TensorType) -> None:
    require_float(x, what)
    if x.rank < 2:
        raise ShapeError(f"{what} needs [batch, channels, *spatial], not {x}; reshape it")
    if any(row != x.with_shape(x.shape[1:2]) for row in rows.values()):
        given = " and ".join(f"{name} {row}" for name, row in rows.items())
        raise ShapeError(
            f"{what} of {x} has {given}; give one value per channel, in the dtype of x"
        )
    if not x.size and x.shape[1]:
        raise ShapeError(f"cannot take the {what} of {x}; there are no elements in a channel")


def _check_statistics(what: str, x: TensorType, *given: TensorType) -> None:
    if any(t.shape != x.shape[1:2] for t in given):
        found = " and ".join(map(str, given))
        raise ShapeError(f"{what} of {x} has statistics {found}; give one number per channel")


def _statistics(x: TensorType) -> TensorType:
    return TensorType(x.shape[1:2], accumulator(x.dtype))


def _dims(x: TensorType) -> tuple[str, list[str]]:
    """Return the dimensions of x in a rule, and those over which statistics go."""
    spatial = [f"s{i}" for i in range(x.rank - 2)]
    return " ".join(["b", "c", *spatial]), ["b", *spatial]


def _over(x: TensorType) -> tuple[int, ...]:
    return (0, *range(2, x.rank))


def as_column(row: Any, x: Any) -> Any:
    """Return numbers of channels so that they meet the channels of x."""
    return reshape(row, (row.shape[0],) + (1,) * (x.ndim - 2))


def _stack(*rows: Any) -> Any:
    return concatenate([reshape(row, (1, *row.shape)) for row in rows], 0)


def _take_moments(x: Any, padded: list[tuple[int, Group]]) -> tuple[Any, Any]:
    """Return the moments of a part without its padding, which is zeros; of nothing they are 0."""
    (x,) = widen([x])
    shape, count = x.shape, x.size // x.shape[1]
    is_there: Any = None
    share: Any = x.builder.constant(1.0 / count, x.dtype)
    for dimension, group in padded:
        sizes: Any = 0
        for number, size in enumerate(group.parts):
            sizes = where(group.index == number, size, sizes)
        column = [1] * len(shape)
        column[dimension] = shape[dimension]
        inside = reshape(less(iota(x, (shape[dimension],)), sizes), tuple(column))
        is_there = inside if is_there is None else is_there & inside
        least = where(sizes > 0, sizes, 1)
        share = share * shape[dimension] / cast(least, x.dtype)
    average = sum(x, _over(x.type)) * share
    away = where(broadcast_to(is_there, shape), x - as_column(average, x), 0)
    return average, sum(away * away, _over(x.type)) * share


def _join(average: Any, variance: Any, group: Group) -> tuple[Any, Any]:
    """Return the moments of all parts of a group from those of this device's part."""
    parts = group.gather(_stack(average, variance), "moments of the whole batch", operands=(0,))
    whole = 0
    for size in group.parts:
        whole += size
    shares = [size / whole for size in group.parts]
    averages, variances = ([parts[i, j] for i in range(len(shares))] for j in range(2))
    average = _weigh(averages, shares)
    spread = [x + (m - average) * (m - average) for x, m in zip(variances, averages, strict=True)]
    return average, _weigh(spread, shares)


def _weigh(terms: list[Any], shares: list[float]) -> Any:
    total = terms[0] * shares[0]
    for term, share in zip(terms[1:], shares[1:], strict=True):
        total = total + term * share
    return total


__all__ = [
    "BatchNorm",
    "BatchNormGradient",
    "ChannelGradient",
    "ChannelMoments",
    "ChannelSums",
    "NormalizeChannels",
]  # fmt: skip
