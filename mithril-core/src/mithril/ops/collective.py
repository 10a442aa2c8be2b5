"""Collectives, and the ops that turn a device's index on a mesh axis into a part of a value.

These appear only in the local programs of a plan: the partitioner puts them there. `count` is the
number of devices in a group. They have no sharding rule, because they are never partitioned again.

What is particular to a kind of collective stands in its class and nowhere else: the bytes that are
counted, the traffic that prices it, of what it is made where a library lacks it, and which groups
it fits. The kind is the class's `name`. What a kind does to arrays is the engines' part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mithril.ir.op import Cost, Op, Types, register, registry
from mithril.ir.start import find_begun
from mithril.types import DType, Shape, TensorType

SEND = "send"
"""The kind of a message from one device to another, where a plan or a library issues one."""


NARROW_FLOATS = frozenset({DType.bfloat16, DType.float16})


def is_narrow_sum(reduction: str, dtype: DType) -> bool:
    """Return whether a reduction over devices adds 16-bit floats up.

    >>> is_narrow_sum("sum", DType.bfloat16), is_narrow_sum("max", DType.bfloat16)
    (True, False)
    """
    return reduction == "sum" and dtype in NARROW_FLOATS


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one device sends in a collective, for the alpha-beta model.

    Args:
        messages: how many it sends one after another.
        bytes: of all of them together.
    """

    messages: int
    bytes: float


@dataclass(frozen=True)
class Collective(Op):
    """Base of ops in which the devices of a group exchange data over mesh `axes`."""

    is_collective: ClassVar[bool] = True
    reduces: ClassVar[bool] = False
    """Whether values are combined; where they are not, data only moves."""
    passes_on: ClassVar[bool] = False
    """Whether devices of a node can share what goes out of it and pass on what comes in."""
    fallbacks: ClassVar[tuple[type[Collective], ...]] = ()
    """What a library that lacks this one makes it of: the first that it has. All have the last."""

    axes: tuple[str, ...]

    def count_bytes(self, inputs: Types) -> int:
        """Return the bytes that plans and observers count: by default those of the operands.

        Args:
            inputs: the local operands.
        """
        return sum(type.nbytes for type in inputs)

    @classmethod
    def to_held_bytes(cls, nbytes: int, group: int) -> int:
        """Return the bytes of what each device puts in.

        Args:
            nbytes: as `count_bytes` counts them.
            group: devices that take part.
        """
        del group
        return nbytes

    @classmethod
    def to_counted_bytes(cls, held: int, group: int) -> int:
        """Return the bytes as `count_bytes` counts them, from those that each device puts in."""
        del group
        return held

    @classmethod
    def traffic(cls, nbytes: float, group: int) -> Traffic:
        """Return what each device sends, by the best algorithm known.

        Args:
            nbytes: as `count_bytes` counts them.
            group: devices that take part.
        """
        raise NotImplementedError

    @classmethod
    def torus_traffic(cls, nbytes: float, group: int) -> Traffic:
        """Return the same where only neighbours are linked: by rings, whose bytes are as few.

        Args:
            nbytes: as `count_bytes` counts them.
            group: devices that take part.
        """
        return Traffic(group - 1, cls.traffic(nbytes, group).bytes)

    @classmethod
    def direct_traffic(cls, nbytes: float, group: int) -> Traffic:
        """Return the same where each two devices have a link of their own: one message to all.

        Args:
            nbytes: as `count_bytes` counts them.
            group: devices that take part.
        """
        return Traffic(1, cls.traffic(nbytes, group).bytes)

    def check(self, group: int) -> str:
        """Return what is wrong with it in a group of this size; empty where it fits."""
        del group
        return ""

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, sum(t.nbytes for t in (*inputs, *outputs)))


@register
@dataclass(frozen=True)
class AllReduce(Collective):
    """Every device gets the reduction of all values of its group.

    Several operands make one collective over a flat buffer: a bucket.
    """

    name: ClassVar[str] = "all_reduce"
    passes_on: ClassVar[bool] = True
    reduces: ClassVar[bool] = True
    reduction: str

    def infer(self, inputs: Types) -> Types:
        return list(inputs)

    @classmethod
    def traffic(cls, nbytes: float, group: int) -> Traffic:
        """Return that of a reduce_scatter and an all_gather."""
        once = _halving(nbytes, group)
        return Traffic(2 * once.messages, 2 * once.bytes)

    @classmethod
    def torus_traffic(cls, nbytes: float, group: int) -> Traffic:
        return Traffic(2 * (group - 1), cls.traffic(nbytes, group).bytes)

    @classmethod
    def direct_traffic(cls, nbytes: float, group: int) -> Traffic:
        """Return that of a reduce_scatter and an all_gather, each of one message."""
        return Traffic(2, cls.traffic(nbytes, group).bytes)


@register
@dataclass(frozen=True)
class AllGather(Collective):
    """Every device gets the parts of its group, concatenated along a dimension.

    Several operands, each of which is concatenated by itself, travel in one flat buffer.
    """

    name: ClassVar[str] = "all_gather"
    passes_on: ClassVar[bool] = True
    dimension: int
    count: int

    def infer(self, inputs: Types) -> Types:
        return [_scale_dimension(x, self.dimension, self.count, 1) for x in inputs]

    def count_bytes(self, inputs: Types) -> int:
        """Return the bytes of the results."""
        return sum(type.nbytes for type in self.infer(inputs))

    @classmethod
    def to_held_bytes(cls, nbytes: int, group: int) -> int:
        """Return the bytes of a part."""
        return nbytes // group

    @classmethod
    def to_counted_bytes(cls, held: int, group: int) -> int:
        """Return the bytes of all parts."""
        return held * group

    @classmethod
    def traffic(cls, nbytes: float, group: int) -> Traffic:
        return _halving(nbytes, group)

    def check(self, group: int) -> str:
        return _count_fault(self.count, group)


@register
@dataclass(frozen=True)
class AllToAll(Collective):
    """Every device cuts its value along `split` and gets the pieces meant for it along `concat`.

    Several operands, each of which is cut and put together by itself, travel in one flat buffer.
    """

    name: ClassVar[str] = "all_to_all"
    fallbacks: ClassVar[tuple[type[Collective], ...]] = (AllGather,)
    split: int
    concat: int
    count: int

    def infer(self, inputs: Types) -> Types:
        cuts = [_scale_dimension(x, self.split, 1, self.count) for x in inputs]
        return [_scale_dimension(cut, self.concat, self.count, 1) for cut in cuts]

    @classmethod
    def traffic(cls, nbytes: float, group: int) -> Traffic:
        """Return that of pairwise exchange."""
        return Traffic(group - 1, (group - 1) / group * nbytes)

    @classmethod
    def torus_traffic(cls, nbytes: float, group: int) -> Traffic:
        """Return that of a ring, both ways round: a byte passes a quarter of it on average."""
        return Traffic(group - 1, cls.traffic(nbytes, group).bytes * max(1.0, group / 4))

    def check(self, group: int) -> str:
        return _count_fault(self.count, group)


@register
@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Every device gets its part, along a dimension, of the reduction over its group.

    Several operands, of each of which it gets a part, travel in one flat buffer. A library that
    lacks it exchanges all parts, which a device then reduces: as many bytes.
    """

    name: ClassVar[str] = "reduce_scatter"
    passes_on: ClassVar[bool] = True
    reduces: ClassVar[bool] = True
    fallbacks: ClassVar[tuple[type[Collective], ...]] = (AllToAll, AllReduce)
    reduction: str
    dimension: int
    count: int

    def infer(self, inputs: Types) -> Types:
        return [_scale_dimension(x, self.dimension, 1, self.count) for x in inputs]

    @classmethod
    def traffic(cls, nbytes: float, group: int) -> Traffic:
        return _halving(nbytes, group)

    def check(self, group: int) -> str:
        return _count_fault(self.count, group)


@register
@dataclass(frozen=True)
class Permute(Collective):
    """Devices send their value on: `pairs` are (from, to) indices within the group.

    Each sends to at most one device and gets from at most one. Who gets nothing has zeros. Several
    operands travel in one flat buffer.
    """

    name: ClassVar[str] = "permute"
    fallbacks: ClassVar[tuple[type[Collective], ...]] = (AllGather,)
    pairs: tuple[tuple[int, int], ...]

    def infer(self, inputs: Types) -> Types:
        return list(inputs)

    @property
    def sources(self) -> Mapping[int, int]:
        """Who sends to each member that gets something."""
        return {target: source for source, target in self.pairs}

    @classmethod
    def traffic(cls, nbytes: float, group: int) -> Traffic:
        return Traffic(1, nbytes)

    @classmethod
    def torus_traffic(cls, nbytes: float, group: int) -> Traffic:
        """Return that of partners who are neighbours."""
        return cls.traffic(nbytes, group)

    def check(self, group: int) -> str:
        senders, receivers = ([pair[end] for pair in self.pairs] for end in (0, 1))
        are_members = set(range(group)).issuperset({*senders, *receivers})
        if self.pairs and are_members and _are_distinct(senders) and _are_distinct(receivers):
            return ""
        return f"sends {self.pairs} in a group of {group}"


def collectives() -> Mapping[str, type[Collective]]:
    """Return the classes of all collectives by kind.

    >>> collectives()["permute"].__name__
    'Permute'
    """
    return {name: op for name, op in registry().items() if issubclass(op, Collective)}


def is_collective(kind: str) -> bool:
    """Return whether there is a collective of a kind."""
    found = registry().get(kind)
    return found is not None and issubclass(found, Collective)


def class_of(kind: str) -> type[Collective]:
    """Return the class of a kind of collective."""
    found = registry()[kind]
    assert issubclass(found, Collective), "it is asked for kinds of collectives"
    return found


def collective_of(op: Op) -> Collective | None:
    """Return the collective that an op issues: itself, or what it starts; None for other ops."""
    if not op.is_collective:  # asked of thousands
        return None
    issued = find_begun(op)
    return issued if isinstance(issued, Collective) else None


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
    is_view: ClassVar[bool] = True
    dimension: int
    count: int

    def infer(self, inputs: Types) -> Types:
        return [_scale_dimension(inputs[0], self.dimension, 1, self.count)]

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


def _halving(nbytes: float, group: int) -> Traffic:
    """Return the traffic of recursive doubling or halving: the parts of the others come once."""
    return Traffic(math.ceil(math.log2(group)), (group - 1) / group * nbytes)


def _count_fault(count: int, group: int) -> str:
    return "" if count == group else f"counts {count} members of {group}"


def _are_distinct(members: list[int]) -> bool:
    return len(set(members)) == len(members)


def _scale_dimension(t: TensorType, dimension: int, times: int, over: int) -> TensorType:
    shape: Shape = tuple(
        size * times // over if i == dimension else size for i, size in enumerate(t.shape)
    )
    return t.with_shape(shape)


__all__ = [
    "SEND", "AllGather", "AllReduce", "AllToAll", "AxisIndex", "Collective", "KeepFirst", "Permute",
    "ReduceScatter", "TakeShard", "Traffic",
]  # fmt: skip
