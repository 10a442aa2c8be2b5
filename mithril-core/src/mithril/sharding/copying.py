"""Which nodes may compute copies over an axis, though a single factor is their candidate there.

A single candidate is taken as the user's intent and has to be split. These nodes have one without
that anybody meant them:

* Heads fewer than the devices of an axis. Two key heads cannot be split over four devices: the axis
  is cut in two, its major part splits the heads, and over the minor part a device has a part of a
  head, of which somebody gathers the whole, or it has a copy. A weight whose rows are split over
  the whole axis leads to the first; to gather the smaller weight, or to keep copies of it, may be
  cheaper. The walk goes back from an op that takes few heads for many, over the dimension that
  became heads, to the parameters; whatever takes a value on the way is found.
* What nobody splits. A factor is a candidate of all that it is linked with, also beyond a product
  that has to split something else: the sequence of what is computed from logits split over the
  vocabulary, because the activations below come split over it. Nothing there comes split, or has to
  leave so.
* What only changes the shape of a value that is then repeated along another candidate, as targets
  are along the vocabulary: it is whole where that one is split, so it is gathered once, before.

Prices decide, except for a statistic: what nobody splits, and what goes back to values that are
split in a dimension that it lacks, as the largest logit of each row. It is needed whole there, and
to compute a part of it on each device saves next to nothing and costs a second collective; it is
whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mithril.ir import Node, Rule, Value
from mithril.mesh import MICRO, Axis, Mesh, Sharding
from mithril.sharding.regions import Link

Factors = Mapping[Node, Mapping[str, tuple[str, ...]]]
"""Factors of a node, by mesh axis."""
Place = tuple[Value, int]
"""A dimension of a value."""
Touching = Mapping[Value, Sequence[tuple[Node, int, bool]]]
"""The nodes that use or make a value, with the position there."""

Dims = frozenset[int]
NOWHERE: Dims = frozenset()
Step = tuple[frozenset[str], tuple[Dims, ...]]
"""The factors that a node splits, and the dimensions in which its results then are split."""
Repeated = tuple[Node, Value, frozenset[str]]
"""A node, an operand that is repeated in a result, and the factors along which it is."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a graph when its candidates are.

    Args:
        nodes: of the graph and of the bodies in it.
        mesh: the devices, with sub-axes where they are needed.
        rules: of the nodes.
        factors: for each node and mesh axis, the candidate factors.
        forced: those of them that compute shardings ask for.
        touching: for each value, the nodes around it.
        joints: the borders of loops.
    """

    nodes: Sequence[Node]
    mesh: Mesh
    rules: Mapping[Node, Rule]
    factors: Factors
    forced: Factors
    touching: Touching
    joints: Sequence[Link]

    def link_back(self) -> dict[Value, list[tuple[Value, int]]]:
        """Return what values came from at the border of a loop, and the shift of dimensions."""
        linked: dict[Value, list[tuple[Value, int]]] = {}
        for link in self.joints:
            linked.setdefault(link.target, []).append((link.source, -link.shift()))
        return linked


ByAxis = dict[str, frozenset[Node]]


def find_copying(
    around: Surroundings, coming: Sequence[Value], going: Sequence[tuple[Value, Sharding]]
) -> tuple[ByAxis, ByAxis]:
    """Return for each mesh axis the nodes that may compute copies over it, and those that have to.

    Args:
        around: the graph and its candidates.
        coming: the values that may come split in any dimension.
        going: the values that go somewhere, and in which sharding.
    """
    may: ByAxis = {}
    must: ByAxis = {}
    for axis in around.mesh.axes:
        if axis.size > 1 and axis.name != MICRO:
            may[axis.name] = _find_before_heads(around, axis)
            if _is_contested(around, axis.name):
                wanted = [
                    value for value, lies in going if lies.dimension_of(axis.name) is not None
                ]
                unsplit, statistics = _find_unsplit(around, axis.name, coming, wanted)
                may[axis.name] |= unsplit
                must[axis.name] = statistics
    return may, must


def _is_contested(around: Surroundings, axis: str) -> bool:
    """Whether a node has to split a factor over an axis, and values around it another one."""
    asked = ((around.factors[n], factors) for n, factors in around.forced.items())
    return any(not set(all_[axis]) <= set(one[axis]) for all_, one in asked if axis in one)


# ------------------------------------------------------------------ heads fewer than devices


def _find_before_heads(around: Surroundings, axis: Axis) -> frozenset[Node]:
    """Return the nodes between parameters and what takes heads that are too few."""
    parts = [part for part in around.mesh.axes if part.origin == axis.origin]
    majors = parts[: parts.index(axis)]
    if not majors:
        return frozenset()
    work = [p for node in around.nodes for p in _list_crowded(around, node, majors, axis)]
    linked, passed = around.link_back(), set[Place]()
    while work:
        place = work.pop()
        if place not in passed:
            passed.add(place)
            value, dimension = place
            linked_here = ((source, dimension + shift) for source, shift in linked.get(value, ()))
            work += (place for place in linked_here if place[1] >= 0)
            work += _list_sources(around, place)
    return frozenset(n for value, _ in passed for n, _, _ in around.touching.get(value, ()))


def _list_crowded(
    around: Surroundings, node: Node, majors: Sequence[Axis], axis: Axis
) -> Iterator[Place]:
    """Yield the operands' dimensions of heads that serve groups of others and are too few.

    A node that takes them splits the heads over the major part, and the heads of a group over this
    one: of those the operand has one for all.
    """
    rule, factors = around.rules[node], around.factors[node]
    able = factors.get(axis.name, ())
    groups = {dim[0]: dim[1] for dims in rule.results for dim in dims if len(dim) > 1}
    for value, dims in zip(node.inputs, rule.operands, strict=True):
        own = {factor for dim in dims for factor in dim}
        for dimension, dim in enumerate(dims):
            if len(dim) == 1 and groups.get(dim[0]) in set(able) - own:
                taken = [major.size for major in majors if dim[0] in factors.get(major.name, ())]
                if taken and rule.sizes[dim[0]] % math.prod((*taken, axis.size)):
                    yield value, dimension


def _list_sources(around: Surroundings, place: Place) -> Iterator[Place]:
    """Yield the dimensions that a dimension of a value is made of."""
    value, dimension = place
    for node, position, is_result in around.touching.get(value, ()):
        if is_result:
            made = around.rules[node].results[position][dimension]
            for source, dims in zip(node.inputs, around.rules[node].operands, strict=True):
                for at, dim in enumerate(dims):
                    if made and dim[:1] == made[:1]:
                        yield source, at


# ------------------------------------------------------------------ what nobody splits


def _find_unsplit(
    around: Surroundings, axis: str, coming: Sequence[Value], wanted: Sequence[Value]
) -> tuple[frozenset[Node], frozenset[Node]]:
    """Return the nodes that nobody splits, or that need not, and those that are statistics."""
    come = _find_coming(around, axis, coming)
    able = (n for n in around.nodes if around.factors[n].get(axis))
    rest = frozenset(n for n in able if n not in come)
    rest -= _find_going(around, rest, wanted)
    repeated = list(_list_repeated(around))
    statistics = _find_statistics(around, axis, repeated, rest, come)
    return rest - statistics | _find_moved(around, axis, repeated), statistics


def _find_statistics(
    around: Surroundings,
    axis: str,
    repeated: Sequence[Repeated],
    unsplit: frozenset[Node],
    come: Mapping[Node, frozenset[str]],
) -> frozenset[Node]:
    """Return the nodes that nobody splits whose results are needed whole."""
    values = (value for node, value, along in repeated if node in come and come[node] <= along)
    return _walk_back(around, axis, values, lambda node: node in unsplit)


def _find_moved(around: Surroundings, axis: str, repeated: Sequence[Repeated]) -> frozenset[Node]:
    """Return the nodes without work whose results are repeated along a candidate."""
    values = (
        value
        for node, value, along in repeated
        if not along.isdisjoint(around.factors[node].get(axis, ()))
    )
    return _walk_back(
        around,
        axis,
        values,
        lambda node: not node.cost().flops and axis not in around.forced.get(node, {}),
    )


def _walk_back(
    around: Surroundings, axis: str, values: Iterable[Value], admits: Callable[[Node], bool]
) -> frozenset[Node]:
    """Return the admitted nodes with one candidate that values come from, and so on."""
    work, found = list(values), set[Node]()
    while work:
        value = work.pop()
        for node, _, is_result in around.touching.get(value, ()):
            if is_result and node not in found and _has_one(around, node, axis) and admits(node):
                found.add(node)
                work += node.inputs
    return frozenset(found)


def _has_one(around: Surroundings, node: Node, axis: str) -> bool:
    """Whether a node has a single candidate, and not in place of another factor."""
    return len(around.factors[node].get(axis, ())) == 1 and not around.rules[node].proposes


def _list_repeated(around: Surroundings) -> Iterator[Repeated]:
    """Yield the nodes that repeat an operand in a result, with it and along which factors."""
    known: dict[int, list[tuple[int, frozenset[str]]]] = {}  # equal nodes share a rule
    for node in around.nodes:
        rule = around.rules[node]
        if id(rule) not in known:
            known[id(rule)] = list(_find_repeated(rule))
        yield from ((node, node.inputs[position], along) for position, along in known[id(rule)])


def _find_repeated(rule: Rule) -> Iterator[tuple[int, frozenset[str]]]:
    for position, dims in enumerate(rule.operands):
        own = frozenset(factor for dim in dims for factor in dim)
        for result in rule.results:
            made = frozenset(factor for dim in result for factor in dim)
            if own and own < made:
                yield position, made - own


def _find_coming(
    around: Surroundings, axis: str, coming: Sequence[Value]
) -> dict[Node, frozenset[str]]:
    """Return the factors along which operands may come split, for the nodes that can split one."""
    comes = {value: frozenset(range(value.type.rank)) for value in coming}
    known: dict[tuple[int, tuple[str, ...], tuple[Dims, ...]], Step] = {}
    found: dict[Node, frozenset[str]] = {}
    is_new = True
    while is_new:  # more than once only because of loops
        for node in around.nodes:
            rule = around.rules[node]
            able = around.forced.get(node, {}).get(axis) or around.factors[node].get(axis)
            if able:
                here = tuple([comes.get(value, NOWHERE) for value in node.inputs])
                key = (id(rule), able, here)  # equal nodes share a rule
                if key not in known:
                    known[key] = _advance(rule, able, here)
                taken, made = known[key]
                if taken:
                    found[node] = taken
                    for value, dims in zip(node.outputs, made, strict=True):
                        comes[value] = comes.get(value, NOWHERE) | dims
        is_new = False
        for link in around.joints:
            before = comes.get(link.target, NOWHERE)
            inside = {d + link.shift() for d in comes.get(link.source, NOWHERE)} - {-1}
            comes[link.target] = before | inside
            is_new |= comes[link.target] != before
    return found


def _advance(rule: Rule, able: Sequence[str], here: Sequence[Dims]) -> Step:
    """Return the factors that a node splits of operands that come split, and the results' dims."""
    taken = frozenset(
        factor
        for dims, split in zip(rule.operands, here, strict=True)
        for dimension in split
        for factor in _list_taken(rule, dims[dimension], able)
    )
    made = tuple(
        frozenset(i for i, dim in enumerate(dims) if not taken.isdisjoint(dim))
        for dims in rule.results
    )
    return taken, made


def _list_taken(rule: Rule, dim: Sequence[str], able: Sequence[str]) -> Iterator[str]:
    """Yield the factors that a node splits where a dimension is split; others in their place."""
    for factor in dim:
        if factor in able or factor in rule.proposes:
            yield factor
        else:
            for dims in (*rule.operands, *rule.results):
                yield from (f for other in dims if factor in other[1:] for f in other if f in able)


def _find_going(
    around: Surroundings, nodes: frozenset[Node], going: Iterable[Value]
) -> frozenset[Node]:
    """Return the nodes, of some, from which results go to values that are wanted split."""
    linked = around.link_back()
    work, found = list(going), set[Node]()
    while work:
        value = work.pop()
        work += (source for source, _ in linked.pop(value, ()))
        for node, _, is_result in around.touching.get(value, ()):
            if is_result and node in nodes and node not in found:
                found.add(node)
                work += node.inputs
    return frozenset(found)
