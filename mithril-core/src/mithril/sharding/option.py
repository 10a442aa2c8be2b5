"""The ways to run one node: per mesh axis a factor, a linear group of operands, or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from mithril.ir import Node, Phase, Rule
from mithril.mesh import Mesh, Sharding
from mithril.sharding.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a node: per mesh axis a factor or a linear group, and what follows from it.

    Args:
        factors: mesh axis to split factor.
        linear: mesh axis to linear group of operands.
        operands: sharding each operand is needed in.
        results: sharding each result is produced in.
    """

    factors: Mapping[str, str]
    linear: Mapping[str, tuple[int, ...]]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    def signature(self) -> Hashable:
        """Return what is equal for options that are the same way to run a node."""
        split = tuple(self.factors.items()), tuple(self.linear.items())
        return *split, self.operands, self.results

    def axes_of(self) -> dict[str, tuple[str, ...]]:
        """Return the mesh axes that split each split factor, major first."""
        axes: dict[str, tuple[str, ...]] = {}
        for axis, factor in self.factors.items():
            axes[factor] = (*axes.get(factor, ()), axis)
        return axes


AxisChoice = str | tuple[int, ...] | None
AxisChoices = tuple[AxisChoice, ...]
KnownOptions = dict[
    tuple[int, tuple[AxisChoices, ...], frozenset[str], frozenset[str]],
    tuple[Rule, tuple[Option, ...]],
]
"""Options by what they follow from: a rule, which is kept, and what is admitted on each axis."""


class NodeOptions:
    """The ways to run the nodes of a graph; equal nodes with equal candidates share theirs.

    Args:
        mesh: the devices.
        candidates: what may be split; equal nodes share a rule there.
        pads: whether a dimension may be split that does not divide.
        known: options that were found before, on this mesh.
    """

    def __init__(self, mesh: Mesh, candidates: Candidates, pads: bool, known: KnownOptions) -> None:
        self._mesh = mesh
        self._axes = [axis.name for axis in mesh.axes if axis.size > 1]
        self._candidates = candidates
        self._pads = pads
        self._known = known

    def of(self, node: Node) -> tuple[Option, ...]:
        """Return the admitted options of a node, one per combination of choices on the axes."""
        rule = self._candidates.rules[node]
        asked = self._candidates.asked.get(node, frozenset())
        per_axis = tuple(_axis_choices(node, axis, self._candidates) for axis in self._axes)
        minor = self._candidates.minor if node.phase == Phase.update else frozenset()
        key = (id(rule), per_axis, asked, minor)
        if key not in self._known:
            self._known[key] = rule, self._combine(rule, per_axis, asked, minor)
        return self._known[key][1]

    def _combine(
        self,
        rule: Rule,
        per_axis: Sequence[AxisChoices],
        asked: frozenset[str],
        minor: frozenset[str],
    ) -> tuple[Option, ...]:
        # The axes may exclude one another (too small a dimension, say): then let each stand aside,
        # at first those that have to take a factor in place of another one, so that they are
        # refused.
        relaxed = [(*choices, None) for choices in per_axis]
        aside = [
            more if axis in asked else choices
            for axis, choices, more in zip(self._axes, per_axis, relaxed, strict=True)
        ]
        return (
            self._admit(rule, per_axis, asked | minor)
            or (asked and self._admit(rule, aside, asked | minor))
            or self._admit(rule, relaxed, asked | minor)
        )

    def _admit(
        self, rule: Rule, per_axis: Sequence[AxisChoices], minor: frozenset[str]
    ) -> tuple[Option, ...]:
        """Return the combinations that fit the rule's layout."""
        found = (
            _option(rule, self._mesh, dict(zip(self._axes, picks, strict=True)), self._pads, minor)
            for picks in itertools.product(*per_axis)
        )
        return tuple(filter(None, found))


def _axis_choices(node: Node, axis: str, candidates: Candidates) -> AxisChoices:
    forced = candidates.forced.get(node, {}).get(axis)
    may_copy = node in candidates.copying.get(axis, ())
    if forced and not may_copy:
        return forced
    factors = forced or candidates.factors[node].get(axis, ())
    able = candidates.partial[axis]
    groups = tuple(
        group
        for group in candidates.rules[node].linear
        if any(node.inputs[i] in able for i in group)
    )
    # A single candidate is the user's intent: running the node twice is then no alternative.
    is_proposed = bool(factors) and axis in candidates.asked.get(node, ())
    may_gather = is_proposed and candidates.rules[node].may_gather
    is_asked = is_proposed and not may_gather
    is_intended = len(factors) == 1 and not may_copy and not may_gather
    nothing: AxisChoices = () if is_intended or is_asked else (None,)
    return (*factors, *groups, *nothing)


def _option(
    rule: Rule,
    mesh: Mesh,
    picks: Mapping[str, AxisChoice],
    pads: bool,
    minor: Collection[str] = (),
) -> Option | None:
    """Return what the picks imply, or None when they do not fit the rule's layout.

    An axis that takes a factor in place of another comes and goes: it is a minor one, as is one
    that splits further what is kept between steps.
    """
    ordered = sorted(picks, key=lambda axis: axis in minor)
    factors = {axis: pick for axis in ordered if isinstance(pick := picks[axis], str)}
    linear = {axis: pick for axis, pick in picks.items() if isinstance(pick, tuple)}
    axes_of = Option(factors, linear, (), ()).axes_of()
    if any(
        not _may_cut(rule, factor, mesh.product(axes), pads) for factor, axes in axes_of.items()
    ):
        return None
    operands = []
    for index, dims in enumerate(rule.operands):
        pending = tuple((axis, "sum") for axis, group in linear.items() if index in group)
        operands.append(_sharding(rule, mesh, dims, axes_of, pending))
    results = []
    for dims in rule.results:
        found = {axis: rule.leaves(factor, dims) for axis, factor in factors.items()}
        left = {axis: reduction for axis, reduction in found.items() if reduction}
        pending = tuple(
            (axis, left.get(axis, "sum")) for axis in picks if axis in left or axis in linear
        )
        results.append(_sharding(rule, mesh, dims, axes_of, pending))
    if None in operands or None in results:
        return None
    return Option(factors, linear, tuple(filter(None, operands)), tuple(filter(None, results)))


def _may_cut(rule: Rule, factor: str, parts: int, pads: bool) -> bool:
    """Whether a factor may be cut: evenly, or with padding where it stands alone and is larger."""
    size = rule.sizes[factor]
    return size % parts == 0 or (pads and size > parts and rule.may_pad(factor))


def _sharding(
    rule: Rule,
    mesh: Mesh,
    dims: Sequence[tuple[str, ...]],
    axes_of: Mapping[str, tuple[str, ...]],
    pending: tuple[tuple[str, str], ...],
) -> Sharding | None:
    split: list[tuple[str, ...]] = []
    for dim in dims:
        axes: tuple[str, ...] = ()
        complete = True
        for factor in dim:
            own = axes_of.get(factor, ())
            if own and not complete:
                return None  # a minor factor may be split only inside a completely split major
            axes += own
            complete = complete and mesh.product(own) == rule.sizes[factor]
        split.append(axes)
    return Sharding(mesh, tuple(split), pending)
