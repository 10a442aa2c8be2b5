"""Normalisation of groups of channels of each sample: group_norm and its gradient.

Tensors are [batch, channels, *spatial]; statistics are [batch, groups], in at least float32.
Samples and whole groups may be split; the rest is whole for the fused ops, and may be split when
they are expanded, at the price of one number a group for each mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import apply
from mithril.ir.rule import Rule
from mithril.ops.batch_norm import as_column, promote_floats
from mithril.ops.elementwise import cast
from mithril.ops.expansion import gradient_by_expansion, gradient_of_fused
from mithril.ops.functions import rsqrt
from mithril.ops.nn import require_float, widen
from mithril.ops.reduce import accumulator, mean, sum
from mithril.ops.shape import reshape
from mithril.types import TensorType


@dataclass(frozen=True)
class _OfGroups(Op):
    """Base: the groups, which are fewer where they are split."""

    groups: int

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        return shard.apply(replace(self, groups=shard.size("g")), *inputs)

    def _rule(self, text: str, inputs: Types, outputs: Types, linear: tuple[int, ...] = ()) -> Rule:
        """Return a rule; `{x}`, `{row}` and `{groups}` in the text stand for dimensions."""
        spatial = [f"s{i}" for i in range(inputs[0].rank - 2)]
        x = " ".join(["b", "(g c)", *spatial])
        return Rule.parse(
            text.format(x=x, row="(g c)", groups="b g"),
            inputs,
            outputs,
            sizes={"g": self.groups},
            expandable=["c", *spatial],
            linear=(linear,) if linear else (),
        )

    def _split(self, x: Any) -> Any:
        """Return x with groups as a dimension of their own."""
        batch, channels, *spatial = x.shape
        return reshape(x, (batch, self.groups, channels // self.groups, *spatial))


@register
@dataclass(frozen=True)
class GroupNorm(_OfGroups):
    """x with groups of channels normalised, times gain plus bias (Wu, He, 2018).

    Operands (x, gain, bias), or x alone; results (y, mean, reciprocal standard deviation), the last
    two [batch, groups], in at least float32.
    """

    name: ClassVar[str] = "group_norm"
    epsilon: float

    def infer(self, inputs: Types) -> Types:
        x, *rows = inputs
        require_float(x, "group_norm")
        if x.rank < 2 or self.groups < 1 or x.shape[1] % self.groups:
            raise ShapeError(
                f"group_norm cannot divide the channels of {x} into {self.groups} groups; give "
                f"[batch, channels, *spatial], and groups that divide the channels"
            )
        if rows and rows != [x.with_shape(x.shape[1:2])] * 2:
            given = " and ".join(map(str, rows))
            raise ShapeError(
                f"group_norm of {x} has gain and bias {given}; give one value per channel for "
                f"each, in the dtype of x"
            )
        if not x.size and x.shape[0]:
            raise ShapeError(f"cannot take the group_norm of {x}; there are no elements in a group")
        statistics = TensorType((x.shape[0], self.groups), accumulator(x.dtype))
        return [x, statistics, statistics]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        (x, *rows), (_, average, scale) = inputs, outputs

        def differentiate(g: Any) -> Cotangents:
            return apply(GroupNormGradient(self.groups), x, average, scale, g, *rows[:1])

        return gradient_of_fused(self, inputs, cotangents, differentiate)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rows = ", {row}, {row}" if len(inputs) > 1 else ""
        return self._rule("{x}" + rows + " -> {x}, {groups}, {groups}", inputs, outputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(8 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, *rows = widen(inputs)
        wide = self._split(x)
        axes = tuple(range(2, wide.ndim))
        average = mean(wide, axes, keepdims=True)
        away = wide - average
        scale = rsqrt(mean(away * away, axes, keepdims=True) + self.epsilon)
        y: Any = reshape(away * scale, x.shape)
        if rows:
            gain, bias = (as_column(row, x) for row in rows)
            y = y * gain + bias
        groups = (x.shape[0], self.groups)
        return [cast(y, inputs[0].dtype), reshape(average, groups), reshape(scale, groups)]


@register
@dataclass(frozen=True)
class GroupNormGradient(_OfGroups):
    """The cotangents of group_norm's operands; operands (x, mean, rstd, cotangent), and gain."""

    name: ClassVar[str] = "group_norm_gradient"

    def infer(self, inputs: Types) -> Types:
        x, *_ = inputs
        return [x, *inputs[4:], *inputs[4:]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        row = ", {row}" if len(inputs) > 4 else ""
        text = "{x}, {groups}, {groups}, {x}" + row + " -> {x}" + row * 2
        return self._rule(text, inputs, outputs, (3,))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(14 * inputs[0].size, super().cost(inputs, outputs).bytes)

    def expand(self, inputs: Tensors) -> Tensors:
        x, average, scale, g, *gains = widen(inputs)
        wide = self._split(x)
        axes = tuple(range(2, wide.ndim))
        column = (*average.shape, *(1 for _ in axes))
        rise: Any = reshape(scale, column)
        normal = (wide - reshape(average, column)) * rise
        inner: Any = g
        if gains:
            inner = g * as_column(gains[0], x)
        inner = self._split(inner)
        dx = inner - mean(inner, axes, keepdims=True)
        dx = dx - normal * mean(inner * normal, axes, keepdims=True)
        found: list[Any] = [reshape(dx * rise, x.shape)]
        if gains:
            over = (0, *range(2, x.ndim))
            found += [sum(g * reshape(normal, x.shape), over), sum(g, over)]
        return [cast(tensor, inputs[0].dtype) for tensor in found]


def group_norm(x: Any, rows: list[Any], groups: int, epsilon: float) -> Any:
    """Return x with each group of channels of a sample normalised.

    Args:
        x: [batch, channels, *spatial], of a float dtype.
        rows: gain and bias, [channels] each, or nothing.
        groups: number of groups of neighbouring channels.
        epsilon: added to the variance.
    """
    return apply(GroupNorm(groups, float(epsilon)), *promote_floats(x, *rows))[0]


__all__ = ["GroupNorm", "GroupNormGradient"]
