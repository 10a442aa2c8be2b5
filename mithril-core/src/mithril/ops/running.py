"""Products over some dimensions, and running sums and products along one.

Devices that share such a dimension exchange what their parts come to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.ir.op import Cost, Cotangents, Shard, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.elementwise import cast, take_cotangent
from mithril.ops.order import AlongAxis, sum_bytes
from mithril.ops.product_gradients import differentiate_cumprod, leave_one_out_products
from mithril.ops.reduce import Reduction, accumulator, sum, total_dtype
from mithril.ops.split_axis import gather_other_parts
from mithril.types import DType, TensorType


@register
@dataclass(frozen=True)
class Prod(Reduction):
    """The product over some dimensions; devices that share one multiply the products of all."""

    name: ClassVar[str] = "prod"

    def result_dtype(self, dtype: DType) -> DType:
        return total_dtype(dtype)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x: Any = inputs[0]
        if not x.dtype.is_float:
            return [None]
        rest: Any = cast(x, accumulator(x.dtype))
        slope: Any = cast(self.spread(take_cotangent(cotangents), x.shape), rest.dtype)
        for axis in self.axes:
            slope = slope * leave_one_out_products(rest, axis)
            rest = apply_one(Prod((axis,), True), rest)
        return [cast(slope, x.dtype)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rule = super().rule(inputs, outputs)
        over, kinds = rule.whole, dict.fromkeys(rule.whole, "prod")
        return replace(rule, reductions=kinds, whole=frozenset(), special=over, completed=over)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        groups = [group for axis in self.axes if (group := shard.group(f"d{axis}")) is not None]
        if not groups:
            return shard.apply(self, *inputs)
        x: Any = inputs[0]
        product: Any = apply_one(self, cast(x, accumulator(x.dtype)))
        for group in groups:
            parts = group.gather(product, "the products of all parts", operands=(0,))
            product = apply_one(Prod((0,), False), parts)
        return [cast(product, shard.outputs[0].dtype)]


@dataclass(frozen=True)
class Running(AlongAxis):
    """Base of what all elements up to each one come to; from the end with `reverse`.

    Devices that share the dimension exchange what their parts come to.
    """

    kind: ClassVar[str] = ""
    reverse: bool = False

    def infer(self, inputs: Types) -> Types:
        (x,) = AlongAxis.infer(self, inputs)
        return [TensorType(x.shape, total_dtype(x.dtype))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        along = frozenset({f"d{self.axis}"})
        kinds = dict.fromkeys(along, self.kind)
        rule = AlongAxis.rule(self, inputs, outputs)
        return replace(rule, reductions=kinds, whole=frozenset(), special=along)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(inputs[0].size, sum_bytes(inputs, outputs))

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        group = shard.group(f"d{self.axis}")
        if group is None:
            return shard.apply(self, *inputs)
        x: Any = inputs[0]
        made: Any = apply_one(self, cast(x, accumulator(x.dtype)))
        last = slice(1) if self.reverse else slice(-1, None)
        total = made[(*(slice(None),) * self.axis, last)]
        reason = f"the {self.kind} of the parts {'behind' if self.reverse else 'before'}"
        fill = int(self.kind == "prod")
        others = gather_other_parts(total, group, reason, fill, is_after=self.reverse)
        return [cast(self.combine(made, others), shard.outputs[0].dtype)]

    def combine(self, made: Any, others: Any) -> Any:
        """Return what a device has made, with what others have along a first dimension."""
        raise NotImplementedError


@register
@dataclass(frozen=True)
class Cumsum(Running):
    """The sum of all elements up to each one; from the end with `reverse`."""

    name: ClassVar[str] = "cumsum"
    kind: ClassVar[str] = "sum"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        if not inputs[0].dtype.is_float:
            return [None]
        return [apply_one(Cumsum(self.axis, not self.reverse), take_cotangent(cotangents))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        linear = () if inputs[0].dtype == DType.bool_ else ((0,),)
        return replace(super().rule(inputs, outputs), linear=linear)

    def combine(self, made: Any, others: Any) -> Any:
        return made + sum(others, 0)


@register
@dataclass(frozen=True)
class Cumprod(Running):
    """The product of all elements up to each one; from the end with `reverse`."""

    name: ClassVar[str] = "cumprod"
    kind: ClassVar[str] = "prod"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x: Any = inputs[0]
        if not x.dtype.is_float:
            return [None]
        wide = accumulator(x.dtype)
        g = cast(take_cotangent(cotangents), wide)
        slope = differentiate_cumprod(cast(x, wide), g, self.axis, reverse=self.reverse)
        return [cast(slope, x.dtype)]

    def combine(self, made: Any, others: Any) -> Any:
        return made * apply_one(Prod((0,), False), others)


__all__ = ["Cumprod", "Cumsum", "Prod", "Running"]
