"""Collectives, and the ops that turn a device's index on a mesh axis into a part of a value.

These appear only in the local programs of a plan: the partitioner puts them there. `count` is the
number of devices in a group. They have no sharding rule, because they are never partitioned again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mithril.ir.op import Cost, Op, Types, register
from mithril.types import DType, Shape, TensorType


@dataclass(frozen=True)
class Collective(Op):
    """Base of ops in which the devices of a group exchange data over mesh `axes`."""

    is_collective: ClassVar[bool] = True
    axes: tuple[str, ...]

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, sum(t.nbytes for t in (*inputs, *outputs)))


@register
@dataclass(frozen=True)
class AllReduce(Collective):
    """Every device gets the reduction of all values of its group.

    Several operands make one collective over a flat buffer: a bucket.
    """

    name: ClassVar[str] = "all_reduce"
    reduction: str

    def infer(self, inputs: Types) -> Types:
        return list(inputs)


@register
@dataclass(frozen=True)
class AllGather(Collective):
    """Every device gets the parts of its group, concatenated along a dimension."""

    name: ClassVar[str] = "all_gather"
    dimension: int
    count: int

    def infer(self, inputs: Types) -> Types:
        return [_scaled(inputs[0], self.dimension, self.count, 1)]


@register
@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Every device gets its part, along a dimension, of the reduction over its group."""

    name: ClassVar[str] = "reduce_scatter"
    reduction: str
    dimension: int
    count: int

    def infer(self, inputs: Types) -> Types:
        return [_scaled(inputs[0], self.dimension, 1, self.count)]


@register
@dataclass(frozen=True)
class AllToAll(Collective):
    """Every device cuts its value along `split` and gets the pieces meant for it along `concat`."""

    name: ClassVar[str] = "all_to_all"
    split: int
    concat: int
    count: int

    def infer(self, inputs: Types) -> Types:
        cut = _scaled(inputs[0], self.split, 1, self.count)
        return [_scaled(cut, self.concat, self.count, 1)]


@register
@dataclass(frozen=True)
class Permute(Collective):
    """Every device sends its value on: `pairs` are (from, to) indices within the group."""

    name: ClassVar[str] = "permute"
    pairs: tuple[tuple[int, int], ...]

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]


@register
@dataclass(frozen=True)
class AxisIndex(Op):
    """The device's row-major index over some mesh axes, as an int32 scalar."""

    name: ClassVar[str] = "axis_index"
    axes: tuple[str, ...]

    def infer(self, inputs: Types) -> Types:
        return [TensorType((), DType.int32)]


@register
@dataclass(frozen=True)
class TakeShard(Op):
    """Part number `index` of `count` equal parts along a dimension; operands (x, index)."""

    name: ClassVar[str] = "take_shard"
    dimension: int
    count: int

    def infer(self, inputs: Types) -> Types:
        return [_scaled(inputs[0], self.dimension, 1, self.count)]

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, outputs[0].nbytes)


@register
@dataclass(frozen=True)
class KeepFirst(Op):
    """The operand where index is 0, zeros elsewhere: a whole value as a partial sum; (x, index)."""

    name: ClassVar[str] = "keep_first"

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, outputs[0].nbytes)


def _scaled(t: TensorType, dimension: int, times: int, over: int) -> TensorType:
    shape: Shape = tuple(
        size * times // over if i == dimension else size for i, size in enumerate(t.shape)
    )
    return t.with_shape(shape)


__all__ = [
    "AllGather", "AllReduce", "AllToAll", "AxisIndex", "Collective", "KeepFirst", "Permute",
    "ReduceScatter", "TakeShard",
]  # fmt: skip
