"""What follows from splitting a dimension: the walk over factors and dimensions for one mesh axis.

A dimension that may be split makes its factor a candidate at every node that touches the value, and
a candidate factor makes every dimension it occurs in splittable. `candidates` says from where it
starts, and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from mithril.ir import Node, Phase, Rule, Value
from mithril.ir.rule import FactorDims
from mithril.mesh import MICRO, Mesh
from mithril.sharding.regions import Link

Touching = dict[Value, list[tuple[Node, int, bool]]]
"""For each value, the nodes that use or make it, with the position there."""


class Closure:
    """The closure for one mesh axis."""

    def __init__(
        self,
        mesh: Mesh,
        axis: str,
        rules: Mapping[Node, Rule],
        touching: Mapping[Value, list[tuple[Node, int, bool]]],
        linked: Mapping[Value, list[tuple[Value, int]]],
        barred: frozenset[Value],
        pads: bool,
    ) -> None:
        self._barred = barred
        self._linked = linked
        self._pads = pads
        self.factors: dict[Node, set[str]] = {}
        self.proposed: dict[Node, set[str]] = {}
        self.expandable: set[Node] = set()
        self.cut = 0
        self._size = mesh.sizes[axis]
        self._is_time = axis == MICRO
        self._others = [other.size for other in mesh.axes if other.name != axis]
        self._rules = rules
        self._touching = touching
        self._seen: set[tuple[Value, int]] = set()

    def run(self, seeds: Iterator[tuple[Value, int]]) -> None:
        """Follow dimensions to factors and factors to dimensions until nothing is new.

        The update of a train step takes what it finds: how its state lies proposes nothing to the
        model, whose gradients are brought there.
        """
        given = list(seeds)
        self._follow(given, is_update=False)
        found, self._seen = list(self._seen), set()
        self._follow([*found, *given], is_update=True)

    def _follow(self, work: list[tuple[Value, int]], is_update: bool) -> None:
        while work:
            value, dimension = work.pop()
            if (value, dimension) in self._seen:
                continue
            self._seen.add((value, dimension))
            for other, shift in self._linked.get(value, ()):
                if dimension + shift >= 0:  # the leading dimension of a stack is not split
                    work.append((other, dimension + shift))
            for node, position, is_result in self._touching.get(value, ()):
                if (node.phase == Phase.update) != is_update:
                    continue
                rule = self._rules[node]
                dims = (rule.results if is_result else rule.operands)[position]
                for factor in dims[dimension]:
                    work.extend(self._propose(node, rule, factor))

    def _propose(self, node: Node, rule: Rule, factor: str) -> Iterator[tuple[Value, int]]:
        found = self.factors.setdefault(node, set())
        if factor in rule.expandable:
            self.expandable.add(node)
        if factor in rule.proposes:
            yield from self._propose_instead(node, rule, factor)
        if factor in found or self._needs_all(rule, factor):
            return
        major = self._blocking_major(rule, factor)
        if not self._divides(rule, factor, is_free=major is None):
            return
        if major is not None:
            # A split minor factor proposes its major: one all_to_all instead of a gather.
            yield from self._propose(node, rule, major)
            return
        if any(factor in dim for dims in self._list_barred_dims(node, rule) for dim in dims):
            return
        found.add(factor)
        for values, sides in ((node.inputs, rule.operands), (node.outputs, rule.results)):
            for value, dims in zip(values, sides, strict=True):
                for dimension, dim in enumerate(dims):
                    if factor in dim:
                        yield value, dimension

    def _needs_all(self, rule: Rule, factor: str) -> bool:
        """Whether an op needs all of a factor: of micro-batches also where devices would exchange.

        What a result in parts takes of later ones is not there when these parts are made.
        """
        is_exchanged = factor in rule.special and factor not in rule.completed
        return factor in rule.whole or (self._is_time and is_exchanged)

    def _propose_instead(self, node: Node, rule: Rule, asked: str) -> Iterator[tuple[Value, int]]:
        """Add the factors that may be split in place of one; results go on split along that one.

        A minor factor is of use where other axes split its major completely.
        """
        found = set()
        for factor in rule.proposes[asked]:
            if not self._divides(rule, factor, is_free=not rule.may_gather):
                if rule.may_gather:
                    continue
                break  # sub-axes may help, and are noted
            if self._blocking_major(rule, factor) is None:
                found.add(factor)
        if rule.may_gather and not found:
            return
        self.proposed.setdefault(node, set()).update(found)
        for value, dims in zip(node.outputs, rule.results, strict=True):
            for dimension, dim in enumerate(dims):
                if asked in dim:
                    yield value, dimension

    def _list_barred_dims(self, node: Node, rule: Rule) -> Iterator[FactorDims]:
        for values, sides in ((node.inputs, rule.operands), (node.outputs, rule.results)):
            for value, dims in zip(values, sides, strict=True):
                if value in self._barred:
                    yield dims

    def _divides(self, rule: Rule, factor: str, *, is_free: bool = True) -> bool:
        """Whether the axis may cut the factor: evenly, or with padding where it stands alone.

        Sub-axes that would help are noted, unless a major factor is in the way of them as well.
        """
        size = rule.sizes[factor]
        if size % self._size == 0:
            return True
        if rule.may_pad(factor):
            return self._pads and size > self._size
        shared = math.gcd(size, self._size)
        if shared > 1 and is_free:
            self.cut = max(self.cut, shared)
        return False

    def _blocking_major(self, rule: Rule, factor: str) -> str | None:
        """Return the major factor that would have to be split completely first, and cannot be."""
        for dims in (*rule.operands, *rule.results):
            for dim in dims:
                if factor in dim[1:]:
                    majors = dim[: dim.index(factor)]
                    size = 1
                    for name in majors:
                        size *= rule.sizes[name]
                    if size > 1 and size not in _products(self._others):
                        return majors[0]
        return None


def _products(sizes: list[int]) -> set[int]:
    products = {1}
    for size in sizes:
        products |= {size * product for product in products}
    return products


def collect_links(joints: Sequence[Link]) -> dict[Value, list[tuple[Value, int]]]:
    """Return, for each value on the border of a loop, what it becomes or came from."""
    linked: dict[Value, list[tuple[Value, int]]] = {}
    for link in joints:
        linked.setdefault(link.source, []).append((link.target, link.shift()))
        linked.setdefault(link.target, []).append((link.source, -link.shift()))
    return linked


def find_touching(nodes: Sequence[Node]) -> Touching:
    """Return, for each value, the nodes that use or make it, with the position there."""
    touching: Touching = {}
    for node in nodes:
        for position, value in enumerate(node.inputs):
            touching.setdefault(value, []).append((node, position, False))
        for position, value in enumerate(node.outputs):
            touching.setdefault(value, []).append((node, position, True))
    return touching
