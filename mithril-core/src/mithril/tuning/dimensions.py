"""Which dimensions of a model hang together, so that splitting one splits all of them for nothing.

The rules of the ops say it: a factor that several operands and results of an op have is one and the
same wherever it stands. Dimensions that such factors join, through the whole forward, are a
*family*. The heads of an attention are one, from the weights of queries to the columns of what
mixes them; the hidden units of a feed-forward another; the vocabulary, the samples and the tokens
of a sequence are, too. Splitting the family of hidden units over an axis is what Megatron-LM does
(Shoeybi et al., 2019): the weights that make them by columns, those that use them by rows, and a
sum where they end. No op or layer is known here by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mithril.cost.work import product_dtype
from mithril.ir import Node, Rule, Value
from mithril.ir.rewrite import walk
from mithril.models.trace import Traced
from mithril.sharding.regions import links

Slot = tuple[Value, int]
"""A dimension of a value."""


@dataclass(frozen=True, slots=True)
class Family:
    """Dimensions that are split together.

    Args:
        parameters: the dimension of each parameter that has one in it.
        inputs: likewise of the model's inputs.
        values: likewise of values between the model's layers.
        size: what it is split over has to divide this.
        flops: operations of products in a forward that are divided where it is split.
        bytes: of the results that are sums over it, in a forward.
        sums: how many of them there are.
        gradient_bytes: of the gradients that are, in a backward.
        gradient_sums: how many of them there are.
        result_bytes: of all results in a forward that have a dimension in it.
        whole_bytes: of what ops read along it that need all of it, or exchange parts of it.
        whole_reads: how many of them there are.
        is_stack: whether it only stacks equal things, such as experts.
        is_whole_somewhere: whether an op needs all of it.
        repeats: names of parameters that have several dimensions in it, and cannot be split so.
    """

    parameters: Mapping[str, int]
    inputs: Mapping[str, int]
    values: Mapping[str, int]
    size: int
    flops: float = 0.0
    bytes: float = 0.0
    sums: int = 0
    gradient_bytes: float = 0.0
    gradient_sums: int = 0
    result_bytes: float = 0.0
    whole_bytes: float = 0.0
    whole_reads: int = 0
    is_stack: bool = False
    is_whole_somewhere: bool = False
    repeats: tuple[str, ...] = ()

    @property
    def summed_bytes(self) -> float:
        """Bytes that are summed over devices in a forward and a backward."""
        return self.bytes + self.gradient_bytes

    def meets(self, other: Family) -> bool:
        """Return whether a parameter has dimensions in both, of which one axis splits one."""
        return any(name in other.parameters for name in self.parameters)


@dataclass(slots=True)
class _Tally:
    """What is added up of a family."""

    size: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    sums: int = 0
    gradients: dict[Value, int] = field(default_factory=dict)
    result_bytes: float = 0.0
    whole_bytes: float = 0.0
    whole_reads: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class _Union:
    """Sets of slots, joined by union and find (Tarjan, 1975)."""

    parent: dict[Slot, Slot] = field(default_factory=dict)

    def find(self, slot: Slot) -> Slot:
        """Return the slot that stands for the set of one."""
        root = slot
        while (above := self.parent.setdefault(root, root)) != root:
            root = above
        while self.parent[slot] != root:
            self.parent[slot], slot = root, self.parent[slot]
        return root

    def join(self, one: Slot, other: Slot) -> None:
        """Make two sets one."""
        self.parent[self.find(one)] = self.find(other)


def find_families(traced: Traced, between: Sequence[str] = ()) -> list[Family]:
    """Return the families of a model's forward that parameters or inputs have dimensions in.

    Args:
        traced: the model.
        between: names of values between its layers.
    """
    graph, union = traced.graph, _Union()
    nodes = [(node, times, _rule(node)) for node, times in walk(graph) if not node.op.bodies]
    for link in links(graph):
        for dimension in range(link.source.type.rank):
            if dimension + link.shift() >= 0:
                union.join((link.source, dimension), (link.target, dimension + link.shift()))
    for node, _, rule in nodes:
        for factor in rule.factors:
            slots = [slot for slot, _ in _majors(node, rule, factor)]
            if not _is_whole(rule, factor):
                for slot in slots[1:]:
                    union.join(slots[0], slot)
    tallies: dict[Slot, _Tally] = {}
    for node, times, rule in nodes:
        for factor in rule.factors:
            slots = [slot for slot, _ in _majors(node, rule, factor)]
            for root in {union.find(slot) for slot in slots}:
                _count(tallies.setdefault(root, _Tally()), node, times, rule, factor)
    return _gather(traced, union, tallies, between)


def _rule(node: Node) -> Rule:
    return node.op.rule(
        tuple(value.type for value in node.inputs), tuple(value.type for value in node.outputs)
    )


def _is_whole(rule: Rule, factor: str) -> bool:
    return factor in rule.whole and factor not in rule.expandable


def _majors(node: Node, rule: Rule, factor: str) -> Iterator[tuple[Slot, bool]]:
    """Yield the dimensions that begin with a factor, and whether each is of a result."""
    sides = ((node.inputs, rule.operands, False), (node.outputs, rule.results, True))
    for values, dims_of, is_result in sides:
        for value, dims in zip(values, dims_of, strict=True):
            for dimension, dim in enumerate(dims):
                if dim[:1] == (factor,):
                    yield (value, dimension), is_result


def _count(tally: _Tally, node: Node, times: int, rule: Rule, factor: str) -> None:
    """Add what splitting a factor does at a node."""
    if factor in rule.whole or factor in rule.special:
        for value, dims in zip(node.inputs, rule.operands, strict=True):
            is_read = any(factor in dim for dim in dims)
            tally.whole_bytes += times * value.type.nbytes * is_read
            tally.whole_reads += times * is_read
    if _is_whole(rule, factor):
        tally.is_whole = True
        return
    tally.size = math.gcd(tally.size, rule.sizes[factor])
    if not node.op.is_view:
        for value, dims in zip(node.outputs, rule.results, strict=True):
            tally.result_bytes += times * value.type.nbytes * any(factor in dim for dim in dims)
    inputs = tuple(value.type for value in node.inputs)
    outputs = tuple(value.type for value in node.outputs)
    if product_dtype(node.op, inputs, outputs) is None:
        return
    tally.flops += times * node.op.cost(inputs, outputs).flops
    for value, dims in zip(node.outputs, rule.results, strict=True):
        if not any(factor in dim for dim in dims):
            tally.bytes += times * value.type.nbytes
            tally.sums += times
    for value, dims in zip(node.inputs, rule.operands, strict=True):
        if not any(factor in dim for dim in dims):
            # Its gradient is a sum over the factor: one, however many products read it.
            tally.gradients[value] = times


def _gather(
    traced: Traced, union: _Union, tallies: Mapping[Slot, _Tally], between: Sequence[str]
) -> list[Family]:
    parameters: dict[Slot, list[tuple[str, int]]] = {}
    inputs: dict[Slot, list[tuple[str, int]]] = {}
    values: dict[Slot, list[tuple[str, int]]] = {}
    for name in between:
        value = traced.value_names[name]
        for dimension in range(value.type.rank):
            values.setdefault(union.find((value, dimension)), []).append((name, dimension))
    for value in traced.graph.inputs:
        if value.name in traced.parameter_names:
            into = parameters
        elif value.name in traced.input_names:
            into = inputs
        else:
            continue
        for dimension in range(value.type.rank):
            root = union.find((value, dimension))
            into.setdefault(root, []).append((value.name, dimension))
    found = []
    for root in dict.fromkeys((*inputs, *parameters)):
        tally, named = tallies.get(root), parameters.get(root, [])
        if tally is None or tally.size < 2:
            continue
        names = [name for name, _ in named]
        stacked = [d < traced.stacked.get(name, 0) for name, d in named]
        found.append(
            Family(
                dict(named), dict(inputs.get(root, [])), dict(values.get(root, [])), tally.size,
                tally.flops, tally.bytes, tally.sums,
                sum(float(times * value.type.nbytes) for value, times in tally.gradients.items()),
                sum(tally.gradients.values()), tally.result_bytes,
                tally.whole_bytes, tally.whole_reads, is_stack=bool(stacked) and all(stacked),
                is_whole_somewhere=tally.is_whole,
                repeats=tuple(sorted({name for name in names if names.count(name) > 1})),
            )
        )  # fmt: skip
    return found


def choose_families(families: Sequence[Family], size: int) -> list[Family]:
    """Return the families that a tensor axis splits: most work for what is summed comes first.

    A table that nothing is multiplied with, such as that of an embedding, comes last.

    Args:
        families: of a model.
        size: devices along the axis.
    """
    fitting = [
        family
        for family in families
        if family.parameters
        and not family.inputs
        and not family.repeats
        and not family.is_stack
        and not family.is_whole_somewhere
        and family.size % size == 0
    ]
    fitting.sort(key=lambda family: -family.flops / (1.0 + family.summed_bytes))
    chosen: list[Family] = []
    for family in fitting:
        if not any(family.meets(other) for other in chosen):
            chosen.append(family)
    return chosen


__all__ = ["Family", "choose_families", "find_families"]
