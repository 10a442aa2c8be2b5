"""Sharding rules: an op described by the factors its dimensions are made of.

A rule names, for each dimension of each operand and result, the factors it consists of (major
first), as in ``"m k, k n -> m n"`` or ``"b s (h d) -> b s h d"``. Splitting a factor over a mesh
axis means that every device runs the same op on a part of it. What then happens to a result follows
from the rule alone:

* a result that contains the factor is split in that dimension;
* a result that does not contain it is *partial*: it still has to be reduced (a sum, unless the rule
  says otherwise);
* a factor marked `special` may be split, but the op's `localize` then exchanges parts of it; where
  it is `completed`, too, that completes the results which do not contain it;
* a factor marked `whole` may not be split at all; one that is also `expandable` may be split once
  the op has been replaced by its expansion (a softmax over a split dimension, say).

`linear` lists groups of operands in which the op is jointly linear: when all operands of a group
are partial sums over an axis and the others are not, the results are partial sums over it. The idea
follows einops and Shardy's sharding rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mithril.errors import ShapeError
from mithril.types import TensorType

FactorDims = tuple[tuple[str, ...], ...]
_DIMENSION = re.compile(r"\(([^)]*)\)|(\S+)")


@dataclass(frozen=True)
class Rule:
    """How an op's dimensions hang together; see the module's text.

    Args:
        sizes: size of each factor.
        operands: for each operand, for each dimension, its factors, major first.
        results: the same for the results.
        reductions: what a factor missing from a result does to it: `sum` (default), `max`, `min`.
            Of a special factor also what its padding leaves as it is: `prod`, or `top`, the largest
            in order.
        whole: factors that may not be split.
        expandable: those of them that may be split in the op's expansion.
        ignored: operands whose layout does not matter; their dimensions have no factors.
        linear: groups of operand indices in which the op is jointly linear.
        even: factors that may only be cut into equal parts, because padding would show in a result.
        special: factors whose parts the op exchanges itself; in their padding it sees what
            `reductions` leaves as it is, by default zeros.
        completed: those of them over which it completes the results that lack them; others leave
            these partial.
        proposes: for a whole factor, those to split in its place where values come split along it;
            they are candidates of this op alone, and its results may be split as the values came.
        may_gather: whether values are gathered instead where none of these can be split, or where
            that costs less; others refuse.
        gathered: whole factors along which an option asks for operands to be gathered.
        separate: whole factors of which a position of the results is made of the same position of
            the operands: the op of some positions is those positions of the op.
        aligned: those of them of which that holds only for positions up to the last.
    """

    sizes: Mapping[str, int]
    operands: tuple[FactorDims, ...]
    results: tuple[FactorDims, ...]
    reductions: Mapping[str, str] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    expandable: frozenset[str] = frozenset()
    ignored: frozenset[int] = frozenset()
    even: frozenset[str] = frozenset()
    special: frozenset[str] = frozenset()
    completed: frozenset[str] = frozenset()
    proposes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    may_gather: bool = False
    gathered: frozenset[str] = frozenset()
    separate: frozenset[str] = frozenset()
    aligned: frozenset[str] = frozenset()

    @staticmethod
    def parse(
        text: str,
        inputs: Sequence[TensorType],
        outputs: Sequence[TensorType],
        *,
        reductions: Mapping[str, str] | None = None,
        whole: Iterable[str] = (),
        linear: Iterable[tuple[int, ...]] = (),
        sizes: Mapping[str, int] | None = None,
        expandable: Iterable[str] = (),
    ) -> Rule:
        """Read a rule such as ``"b s (h d) -> b s h d"`` for operands of these types.

        `_` stands for a dimension of size 1. Sizes of lone factors are read off the types; at most
        one factor of a group in brackets may be missing from `sizes` and the lone ones.

        Raises:
            ShapeError: the text does not fit the types.
        """
        left, right = text.split("->")
        operands = tuple(map(_parse_side, left.split(","))) if inputs else ()
        results = tuple(map(_parse_side, right.split(","))) if outputs else ()
        found = _sizes([*operands, *results], [*inputs, *outputs], dict(sizes or {}), text)
        wholes, later = frozenset(whole), frozenset(expandable)
        return Rule(
            found, operands, results, reductions or {}, wholes | later, tuple(linear), later
        )

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Factors in order of first appearance."""
        seen: dict[str, None] = {}
        for dims in self._sides:
            for dim in dims:
                seen.update(dict.fromkeys(dim))
        return tuple(seen)

    @property
    def _sides(self) -> tuple[FactorDims, ...]:
        return (*self.operands, *self.results)

    @cached_property
    def splittable(self) -> tuple[str, ...]:
        """Factors that may be split over a mesh axis."""
        return tuple(f for f in self.factors if f not in self.whole and self.sizes[f] > 1)

    def leaves(self, factor: str, dims: FactorDims) -> str | None:
        """Return how a result of these dimensions is partial when a factor is split.

        Args:
            factor: of the rule.
            dims: of the result.

        Returns:
            The reduction that it still needs; None where it needs none.
        """
        is_inside = any(factor in dim for dim in dims)
        return None if is_inside or factor in self.completed else self.reduction(factor)

    def may_pad(self, factor: str) -> bool:
        """Return whether padding may stand behind its parts: it shares no dimension, for one."""
        is_alone = all(dim == (factor,) for dims in self._sides for dim in dims if factor in dim)
        return is_alone and factor not in self.even

    def may_take(self, factor: str, part: range) -> bool:
        """Return whether the op of some positions along a factor is those positions of its results.

        Args:
            factor: of all results.
            part: the positions.
        """
        if factor in self.aligned and (part.step != 1 or part.stop != self.sizes[factor]):
            return False
        return factor not in self.special and factor not in self.whole - self.separate

    def asks_along(self, factors: Iterable[str]) -> bool:
        """Return whether an option asks for moves along one of some factors."""
        asked = self.gathered.union(() if self.may_gather else self.proposes)
        return not asked.isdisjoint(factors)

    def reduction(self, factor: str) -> str:
        """Return the reduction a result needs when this factor, absent from it, is split."""
        return self.reductions.get(factor, "sum")


def elementwise_rule(
    inputs: Sequence[TensorType],
    output: TensorType,
    linear: Iterable[tuple[int, ...]] = (),
    results: int = 1,
) -> Rule:
    """Return the rule of an op that works element by element, with NumPy broadcasting.

    Dimensions are aligned at the right; one of size 1 that is stretched has no factor.
    """
    names = tuple(f"d{i}" for i in range(output.rank))
    sizes = dict(zip(names, output.shape, strict=True))
    whole_dims = tuple((name,) if sizes[name] > 1 else () for name in names)
    operands = tuple(
        tuple(
            (name,) if size > 1 else ()
            for name, size in zip(names[output.rank - len(t.shape) :], t.shape, strict=True)
        )
        for t in inputs
    )
    return Rule(sizes, operands, (whole_dims,) * results, linear=tuple(linear))


def _parse_side(text: str) -> FactorDims:
    dims = []
    for group, lone in _DIMENSION.findall(text):
        dims.append(tuple(group.split()) if lone in ("", "_") else (lone,))
    return tuple(dims)


def _sizes(
    sides: Sequence[FactorDims], types: Sequence[TensorType], sizes: dict[str, int], text: str
) -> dict[str, int]:
    if [len(dims) for dims in sides] != [t.rank for t in types]:
        raise ShapeError(f"rule '{text}' does not fit types {', '.join(map(str, types))}")
    pairs = [
        (d, n)
        for dims, t in zip(sides, types, strict=True)
        for d, n in zip(dims, t.shape, strict=True)
    ]
    for dim, size in sorted(pairs, key=lambda pair: len(pair[0])):
        missing = [name for name in dim if name not in sizes]
        known = math.prod(sizes[name] for name in dim if name in sizes)
        if len(missing) == 1 and size % max(known, 1) == 0:
            sizes[missing[0]] = size // max(known, 1)
        elif missing or known != size:
            raise ShapeError(
                f"rule '{text}' does not fit types {', '.join(map(str, types))}: dimension "
                f"({' '.join(dim)}) has size {size}"
            )
    return sizes
