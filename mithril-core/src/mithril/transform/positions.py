"""Compute only the positions that are read: slices move to before the ops that made their operand.

A model that reads one position of a sequence, such as the class token of a vision transformer or
the last token of a prompt, needs that position alone of all that came before, up to where positions
meet: the last attention needs the keys and values of all. Which positions of its operands an op
needs for some of its results follows from its sharding rule: a factor that devices may split, each
for its part of the positions, may be left out in part as well. `Rule.separate` names more factors.

Positions are left out of an op only if nobody reads others of its results, so nothing is computed
twice; where readers want different ones, slices stay where they are. Nor does a slice of more than
half of its operand move, which saves little and leaves sizes that devices split unevenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from mithril.errors import ShapeError
from mithril.ir import Builder, Graph, Node, Op, Tensor, Tensors, Types, Value
from mithril.ir.rewrite import all_nodes, regions, rewrite
from mithril.ir.rule import FactorDims, Rule
from mithril.types import TensorType

Part: TypeAlias = tuple[range, ...]
"""Positions of a tensor, a range for each dimension."""
LARGEST_SHARE = 0.5
"""Of the elements of a tensor, in a slice that moves."""


def compute_read_positions(graph: Graph) -> Graph:
    """Return the graph in which ops compute only the positions of their results that are read.

    Args:
        graph: forward only; gradients of what comes out are gradients of the graph.

    Returns:
        The same graph where that saves no arithmetic.

    >>> from mithril import ops
    >>> from mithril.types import DType
    >>> builder = Builder()
    >>> x = builder.input(TensorType((8, 4), DType.float32), "x")
    >>> graph = builder.build({"y": ops.exp(x)[0]})
    >>> [node.op.name for node in compute_read_positions(graph).nodes]
    ['slice', 'exp', 'reshape']
    """
    if not any(map(_seed, all_nodes(graph))):
        return graph
    needs = _Needs()
    for region in regions(graph):
        needs.add(region.graph)
    return rewrite(graph, _Move(needs)) if needs.narrowed else graph


def _seed(node: Node) -> Part | None:
    """Return which positions a node reads that does nothing else."""
    found = node.op.selection(_types(node.inputs))
    return None if found is None else tuple(map(_tidy, found))


# ------------------------------------------------------------------ what is needed


@dataclass(frozen=True, slots=True)
class _Narrowed:
    """How a node runs on some positions: those of its factors, of its operands and its results."""

    rule: Rule
    factors: Mapping[str, range]
    operands: Sequence[Part]
    results: Sequence[Part]


class _Needs:
    """Which positions of each value are read, and which nodes compute no others.

    Attributes:
        parts: the positions that are made of each value; all of them unless its node is narrowed.
        narrowed: how nodes run that make some positions only.
        selected: for each slice what it takes of its whole operand.
    """

    def __init__(self) -> None:
        self.parts: dict[Value, Part] = {}
        self.narrowed: dict[Node, _Narrowed] = {}
        self.selected: dict[Node, Part] = {}

    def add(self, graph: Graph) -> None:
        """Add a graph, its readers first; bodies of its ops are graphs of their own."""
        self._need_all(graph.outputs.values())
        for node in reversed(graph.nodes):
            for value, part in zip(node.inputs, self._need(node), strict=True):
                if self.parts.setdefault(value, part) != part:
                    self.parts[value] = _whole(value.type)
        self._need_all(graph.inputs)
        for node in graph.nodes:
            if node in self.narrowed and not self._saves(node):
                del self.narrowed[node]
                self._need_all(node.outputs)

    def is_whole(self, value: Value) -> bool:
        """Return whether all positions of a value are made."""
        return self.parts[value] == _whole(value.type)

    def _need_all(self, values: Iterable[Value]) -> None:
        self.parts.update((value, _whole(value.type)) for value in values)

    def _need(self, node: Node) -> Sequence[Part]:
        """Return which positions of its operands a node needs for those that are read of it."""
        seed = _seed(node)
        if seed is not None:
            return [self._select(node, seed)]
        narrowed = self._narrow(node)
        if narrowed is None:
            self._need_all(node.outputs)
            return [_whole(value.type) for value in node.inputs]
        self.narrowed[node] = narrowed
        self.parts.update(zip(node.outputs, narrowed.results, strict=True))
        return narrowed.operands

    def _select(self, node: Node, seed: Part) -> Part:
        """Note what a slice takes of its operand, and return what it needs of it."""
        (x,), (result,) = node.inputs, node.outputs
        wanted = self.parts.setdefault(result, _whole(result.type))
        pairs = zip(seed, wanted, strict=True)
        self.selected[node] = part = tuple(
            _tidy(own[r.start : r.stop : r.step]) for own, r in pairs
        )
        is_small = 0 < math.prod(map(len, part)) <= LARGEST_SHARE * x.type.size
        return part if is_small else _whole(x.type)

    def _narrow(self, node: Node) -> _Narrowed | None:
        """Return how a node computes the positions that are read; None where it computes all."""
        wanted = [self.parts.get(value) for value in node.outputs]
        if all(
            part is None or self.is_whole(x) for x, part in zip(node.outputs, wanted, strict=True)
        ):
            return None
        op = node.op
        if op.bodies or op.is_collective or not op.has_kernel or type(op).rule is Op.rule:
            return None
        rule = op.rule(_types(node.inputs), _types(node.outputs))
        factors = _find_factors(rule, wanted)
        if factors is None or not _may_narrow(rule, factors):
            return None
        operands = _find_parts(rule, rule.operands, _types(node.inputs), factors)
        results = _find_parts(rule, rule.results, _types(node.outputs), factors)
        if operands is None or results is None:
            return None
        narrowed = _Narrowed(rule, factors, operands, results)
        return narrowed if _runs(node, narrowed) else None

    def _saves(self, node: Node) -> bool:
        """Return whether a node, or one that it is made from, computes less than before."""
        return bool(node.cost().flops) or not all(map(self.is_whole, node.inputs))


def _find_factors(rule: Rule, wanted: Sequence[Part | None]) -> Mapping[str, range] | None:
    """Return the positions of factors that results need; None where they need different ones."""
    found: dict[str, range] = {}
    for dims, part in zip(rule.results, wanted, strict=True):
        for factors, positions in zip(dims, part, strict=True) if part else ():
            cut = _cut(positions, factors, rule.sizes)
            if cut is None or any(found.setdefault(name, own) != own for name, own in cut.items()):
                return None
    return {name: part for name, part in found.items() if len(part) < rule.sizes[name]}


def _may_narrow(rule: Rule, factors: Mapping[str, range]) -> bool:
    """Return whether an op may leave positions out: every result has their factors, too."""
    return all(
        rule.may_take(factor, part) and all(factor in chain(*dims) for dims in rule.results)
        for factor, part in factors.items()
    )


def _find_parts(
    rule: Rule, sides: Sequence[FactorDims], types: Types, factors: Mapping[str, range]
) -> list[Part] | None:
    """Return the positions of operands, or results, for those of factors; None without ranges."""
    found = []
    for dims, t in zip(sides, types, strict=True):
        ranges = [
            range(size) if factors.keys().isdisjoint(own) else _join(own, factors, rule.sizes)
            for own, size in zip(dims, t.shape, strict=True)
        ]
        if None in ranges:
            return None
        found.append(tuple(x for x in ranges if x is not None))
    return found


def _cut(part: range, factors: Sequence[str], sizes: Mapping[str, int]) -> dict[str, range] | None:
    """Return the positions of each factor of a dimension; None where they are not independent.

    >>> _cut(range(6, 12), ("a", "b"), {"a": 4, "b": 6})
    {'a': range(1, 2), 'b': range(0, 6)}
    """
    if len(factors) < 2:
        is_one = len(part) == 1 and not part.start
        return {factors[0]: part} if factors else {} if is_one else None
    first, *rest = factors
    inner = math.prod(sizes[name] for name in rest)
    if part.step != 1:
        return None
    if part.start % inner == part.stop % inner == 0:
        own = range(part.start // inner, part.stop // inner)
        return {first: own, **{name: range(sizes[name]) for name in rest}}
    at, start = divmod(part.start, inner)
    if (part.stop - 1) // inner != at:
        return None
    found = _cut(range(start, start + len(part)), rest, sizes)
    return None if found is None else {first: range(at, at + 1), **found}


def _join(
    names: Sequence[str], factors: Mapping[str, range], sizes: Mapping[str, int]
) -> range | None:
    """Return the positions of a dimension of several factors; None where they do not follow evenly.

    >>> _join(("a", "b"), {"a": range(1, 2)}, {"a": 4, "b": 6})
    range(6, 12)
    """
    first, *rest = names
    own = factors.get(first, range(sizes[first]))
    if not rest:
        return own
    behind, inner = _join(rest, factors, sizes), math.prod(sizes[name] for name in rest)
    if behind is None:
        return None
    if len(own) == 1:
        start = own.start * inner
        return range(start + behind.start, start + behind.stop, behind.step)
    if own.step == 1 and len(behind) == inner:
        return range(own.start * inner, own.stop * inner)
    return None


def _runs(node: Node, narrowed: _Narrowed) -> bool:
    """Return whether the op gives results of the right types, without knowing where they lie."""
    builder = Builder()
    types = (
        _narrow_type(x.type, part) for x, part in zip(node.inputs, narrowed.operands, strict=True)
    )
    operands = [builder.input(t, str(n)) for n, t in enumerate(types)]
    shard = _Shard(node, narrowed, builder)
    try:
        results = node.op.localize(operands, shard)
    except ShapeError:
        return False
    return not shard.asks and [x.type for x in results] == list(shard.outputs)


# ------------------------------------------------------------------ how it is computed


class _Shard:
    """A node on some positions; see `mithril.ir.Shard`.

    `asks` tells whether the op wants to know where they lie. Such an op computes all of them: what
    it becomes takes the place as an operand, and the parts on devices would need that once more.
    """

    def __init__(self, node: Node, narrowed: _Narrowed, builder: Builder) -> None:
        made = zip(node.outputs, narrowed.results, strict=True)
        self.outputs: Types = [_narrow_type(value.type, part) for value, part in made]
        self.asks = False
        self._sizes, self._factors = narrowed.rule.sizes, narrowed.factors
        self._builder = builder

    def size(self, factor: str) -> int:
        """Return how many positions of a factor there are."""
        return len(self._factors.get(factor, range(self._sizes[factor])))

    def whole(self, factor: str) -> int:
        """Return how many positions of a factor there are in all."""
        return self._sizes[factor]

    def offset(self, factor: str) -> None:
        """Return that nobody says where the positions of a factor start."""
        self.asks |= factor in self._factors

    def count(self, factor: str) -> None:
        """Return that there is no padding."""

    def group(self, factor: str) -> None:
        """Return that no device has the others."""
        self.asks |= factor in self._factors

    def apply(self, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
        """Append a node to the graph."""
        return self._builder.apply(op, *operands)


class _Move:
    """The rewriting: nodes make the positions that are read, slices are taken of what is whole."""

    def __init__(self, needs: _Needs) -> None:
        self._needs = needs
        self._taken: dict[tuple[Value, Part], Tensor] = {}

    def __call__(self, builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        """Return what takes the place of a node; see `mithril.ir.rewrite.Visit`."""
        narrowed = self._needs.narrowed.get(node)
        if narrowed is not None:
            parts = zip(node.inputs, operands, narrowed.operands, strict=True)
            given = [self._take(value, x, part) for value, x, part in parts]
            return node.op.localize(given, _Shard(node, narrowed, builder))
        selected = self._needs.selected.get(node)
        return None if selected is None else [self._take(node.inputs[0], operands[0], selected)]

    def _take(self, value: Value, x: Tensor, part: Part) -> Tensor:
        """Return some positions of a value, of which x is what is made."""
        if self._needs.parts[value] == part:
            return x
        key = x.value, part
        if key not in self._taken:
            self._taken[key] = x[tuple(slice(r.start, r.stop, r.step) for r in part)]
        return self._taken[key]


# ------------------------------------------------------------------ ranges


def _whole(t: TensorType) -> Part:
    return tuple(map(range, t.shape))


def _tidy(part: range) -> range:
    """Return a range in steps of one where it is one position."""
    return range(part.start, part.start + 1) if len(part) == 1 else part


def _narrow_type(t: TensorType, part: Part) -> TensorType:
    return t.with_shape(tuple(map(len, part)))


def _types(values: Iterable[Value]) -> Types:
    return [value.type for value in values]


__all__ = ["compute_read_positions"]
