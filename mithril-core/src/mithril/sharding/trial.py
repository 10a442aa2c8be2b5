"""What an op exchanges itself, found by trying: it is emitted on a shard of nothing but types.

An op whose rule has special factors issues collectives of its own when one is split (the blocks of
ring attention, say). They are priced by what is really issued, so that no formula can differ. So is
the work of attention where a compiler looks into it: what it keeps in memory between its products,
and which blocks a causal one leaves out, no sum over the op says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mithril import cost
from mithril.cost import product_dtype
from mithril.ir import Builder, Graph, Group, Node, Op, Rule, Tensor, Types, Value
from mithril.mesh import Mesh, Sharding
from mithril.ops.collective import AllGather, AllReduce, Collective, Permute
from mithril.ops.shape import broadcast_to, reshape
from mithril.ops.slicing import pad
from mithril.sharding.option import Option
from mithril.sharding.reshard import Resharder
from mithril.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective an op issues: its kind, bytes on each device, and mesh axes it runs over."""

    kind: str
    bytes: int
    axes: tuple[str, ...]


def exchanges(node: Node, rule: Rule, option: Option) -> tuple[Exchange, ...]:
    """Return the collectives that a node issues itself where it runs as an option says."""
    if not rule.special.intersection(option.axes_of()):
        return ()
    return _try(node, rule, option).issued


def price_work(node: Node, rule: Rule, resharder: Resharder) -> Callable[[Option], float]:
    """Return what gives the predicted seconds of a node as it runs by an option.

    In them are those of the collectives that it issues itself.

    Args:
        node: of the graph on whole tensors.
        rule: its sharding rule.
        resharder: prices collectives, and its hardware the work.
    """
    hardware = resharder.hardware
    inputs, outputs = ([value.type for value in values] for values in (node.inputs, node.outputs))
    product, flops = product_dtype(node.op, inputs, outputs), node.cost().flops
    is_fused = type(node.op).expand is not Op.expand
    looks_into = is_fused and product is not None and hardware.execution.lays_out

    def price(option: Option) -> float:
        if looks_into:
            work = resharder.graph_seconds(_try(node, rule, option).graph)
        else:
            parts = option.results[0].mesh.product(option.factors)
            held = _local(node.inputs, option.operands), _local(node.outputs, option.results)
            local = node.op.cost(*held)
            work = cost.work_seconds(
                node.op, flops / parts, local.bytes, product, hardware, local.windows
            )
        return work + exchange_seconds(node, rule, option, resharder)

    return price


def exchange_seconds(node: Node, rule: Rule, option: Option, resharder: Resharder) -> float:
    """Return the predicted seconds of the collectives that a node issues itself.

    They are infinite if one of them may not occur. The option says how it runs; for the others see
    `price_work`.
    """
    issued = exchanges(node, rule, option)
    if any(resharder.refuses(e.kind, e.bytes) for e in issued):
        return math.inf
    return sum(resharder.collective_seconds(e.kind, e.bytes, e.axes) for e in issued)


def part_sizes(mesh: Mesh, axes: tuple[str, ...], size: int) -> tuple[int, ...]:
    """Return how much each device of a group has of a dimension that some axes cut."""
    sharding = Sharding(mesh, (axes,))
    boxes = (sharding.box(device, (size,))[0] for device in mesh.groups(axes)[0])
    return tuple(box.stop - box.start for box in boxes)


def _local(values: Sequence[Value], shardings: Sequence[Sharding]) -> tuple[TensorType, ...]:
    return tuple(
        _local_type(value.type, sharding) for value, sharding in zip(values, shardings, strict=True)
    )


@lru_cache(maxsize=4096)
def _local_type(type: TensorType, sharding: Sharding) -> TensorType:
    return type.with_shape(sharding.local_shape(type.shape))


@dataclass(frozen=True, slots=True)
class _Tried:
    """What an op emits on one device: the collectives it issues, and all that it computes."""

    issued: tuple[Exchange, ...]
    graph: Graph


def _try(node: Node, rule: Rule, option: Option) -> _Tried:
    """Return what a node emits on one device where it runs as an option says."""
    mesh, axes_of = option.results[0].mesh, option.axes_of()
    parts = tuple((f, axes, part_sizes(mesh, axes, rule.sizes[f])) for f, axes in axes_of.items())
    operands = _local(node.inputs, option.operands)
    results = _local(node.outputs, option.results)
    return _run_trial(node.op, operands, results, tuple(rule.sizes.items()), parts)


@lru_cache(maxsize=1024)
def _run_trial(
    op: Op,
    operands: tuple[TensorType, ...],
    results: tuple[TensorType, ...],
    sizes: tuple[tuple[str, int], ...],
    parts: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...],
) -> _Tried:
    lengths = {factor: lengths for factor, _, lengths in parts}
    axes_of = {factor: axes for factor, axes, _ in parts}
    shard = _Trial(Builder(), dict(sizes), lengths, axes_of, results)
    made = op.localize([shard.builder.input(t, f"x{i}") for i, t in enumerate(operands)], shard)
    graph = shard.builder.build({f"y{i}": x for i, x in enumerate(made)})
    return _Tried(tuple(shard.issued), graph)


@dataclass(slots=True)
class _Trial:
    """A shard on which nothing is computed; see `mithril.ir.Shard`."""

    builder: Builder
    sizes: Mapping[str, int]
    parts: Mapping[str, tuple[int, ...]]
    axes_of: Mapping[str, tuple[str, ...]]
    outputs: Types
    issued: list[Exchange] = field(default_factory=list)

    def size(self, factor: str) -> int:
        return -(-self.sizes[factor] // len(self.parts.get(factor, (0,))))

    def whole(self, factor: str) -> int:
        return self.sizes[factor]

    def offset(self, factor: str) -> Tensor | None:
        return self.builder.constant(0, DType.int32) if factor in self.parts else None

    def count(self, factor: str) -> Tensor | None:
        is_even = len(set(self.parts.get(factor, ()))) <= 1
        return None if is_even else self.builder.constant(0, DType.int32)

    def group(self, factor: str) -> Group | None:
        if factor not in self.parts:
            return None
        index = self.builder.constant(0, DType.int32)
        parts, axes = self.parts[factor], self.axes_of[factor]
        return _TrialGroup(parts, index, self.size(factor), axes, self.issued)

    def apply(self, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
        return self.builder.apply(op, *operands)


@dataclass(slots=True)
class _TrialGroup:
    """A group that notes what it is asked for; see `mithril.ir.Group`."""

    parts: Sequence[int]
    index: Tensor
    local: int
    axes: tuple[str, ...]
    issued: list[Exchange]

    def permute(
        self,
        x: Tensor,
        pairs: tuple[tuple[int, int], ...],
        reason: str,
        operands: Sequence[int] = (),
        results: Sequence[int] = (),
    ) -> Tensor:
        del reason, operands, results
        self._note(Permute(self.axes, pairs), x)
        return x

    def gather(
        self, x: Tensor, reason: str, operands: Sequence[int] = (), results: Sequence[int] = ()
    ) -> Tensor:
        del reason, operands, results
        row: Tensor = reshape(x, (1, *x.shape))
        self._note(AllGather(self.axes, 0, len(self.parts)), row)
        whole: Tensor = broadcast_to(row, (len(self.parts), *x.shape))
        return whole

    def reduce(
        self,
        x: Tensor,
        reduction: str,
        reason: str,
        operands: Sequence[int] = (),
        results: Sequence[int] = (),
    ) -> Tensor:
        del reason, operands, results
        self._note(AllReduce(self.axes, reduction), x)
        return x

    def _note(self, op: Collective, x: Tensor) -> None:
        self.issued.append(Exchange(op.name, op.count_bytes([x.type]), self.axes))

    def stretch(self, x: Tensor, dimension: int) -> Tensor:
        missing = self.local * len(self.parts) - x.shape[dimension]
        return pad(x, [(0, missing if i == dimension else 0) for i in range(x.ndim)])

    def trim(self, x: Tensor, dimension: int) -> Tensor:
        return x[(slice(None),) * dimension + (slice(sum(self.parts)),)]
