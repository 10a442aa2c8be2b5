"""Pairs of shardings that are alike: what goes from one to the other makes the same moves.

Moves do not know which dimension of a tensor is which one: from `P("a", "b")` to `P(None, "b")` a
value goes as it does from `P("b", None, "a")` to `P("b")`. So a pair is described by the axes that
split each dimension before and after, in no order, and by what is partial before and after. What
stays as it is makes no moves: from `P("a", "b")` to `P(None, "b")` a value goes as half of it does
from `P("a")` to `P()` if there are two devices along b. To a sum that is partial over b it goes as
to what is replicated over b, which becomes such a sum for nothing. The size of a dimension makes a
difference only where all these axes together do not divide it: on its way it is split over no
others. What is left is how many bytes go. Where two axes of the mesh may be exchanged, so may they
in a pair.

The order of dimensions makes a difference in two cases, and is kept there. Axes that leave one
dimension for several others are permuted in the order of these. And of two permutes that are both
worth while that of the first dimension is tried first; with three axes there is never a second one,
because an axis is in one place at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from mithril.mesh import Mesh, Sharding
from mithril.sharding.interchange import Renaming
from mithril.types import DType, Shape, TensorType

FEW_AXES = 3
"""With more of them two dimensions may be worth a permute at once."""
BITS = 20
"""Of a number of axes that split a dimension; there are fewer such than fit."""
WORD = 2**62
"""Whole numbers below it are put together in one."""

Kind = tuple[int, ...]
"""What all pairs have in common that are alike, as numbers."""
Typical = tuple[Sharding, Sharding, TensorType]
"""A pair, and a tensor."""


class Pairs:
    """The shardings of tensors of any rank on one mesh by number, and which pairs are alike.

    Args:
        mesh: the devices.
        renamings: other names for its axes with which any path costs as much.
    """

    def __init__(self, mesh: Mesh, renamings: Sequence[Renaming] = ()) -> None:
        self._mesh = mesh
        self._renamings = renamings
        self._renamed: dict[Kind, Kind] = {}
        self._ranks: dict[int, _Rank] = {}
        self._axes: dict[tuple[str, ...], int] = {(): 0}
        self._masks = [0]
        self._partials: dict[frozenset[tuple[str, str]], int] = {}
        self._pending: list[frozenset[tuple[str, str]]] = []
        self._changes: dict[tuple[int, int], tuple[int, int]] = {}
        self._sizes: dict[int, int] = {}

    def number(self, shardings: tuple[Sharding, ...]) -> np.ndarray:
        """Return the numbers of shardings of one rank, from 0; those of a tuple are found once."""
        if not shardings:
            return np.zeros(0, dtype=np.intp)
        rank = self._ranks.setdefault(shardings[0].rank, _Rank())
        if id(shardings) not in rank.tuples:
            numbers = np.array([self._number(rank, one) for one in shardings], dtype=np.intp)
            rank.tuples[id(shardings)] = shardings, numbers
        return rank.tuples[id(shardings)][1]

    def count(self, rank: int) -> int:
        """Return how many shardings have numbers."""
        return len(self._ranks[rank].shardings)

    def find_sharding(self, rank: int, number: int) -> Sharding:
        """Return the sharding with a number."""
        return self._ranks[rank].shardings[number]

    def keeps_partial(
        self, starts: tuple[Sharding, ...], goals: tuple[Sharding, ...]
    ) -> np.ndarray:
        """Return for each start and goal whether the goal is partial over all that the start is."""
        sides = []
        for shardings in (starts, goals):
            found = dict.fromkeys(frozenset(one.partial) for one in shardings)
            places = {partial: at for at, partial in enumerate(found)}
            sides.append((found, [places[frozenset(one.partial)] for one in shardings]))
        (before, rows), (after, columns) = sides
        kept = np.array([[one <= other for other in after] for one in before])
        return kept[np.ix_(rows, columns)]

    def find_kinds(
        self, starts: np.ndarray, goals: np.ndarray, shape: Shape
    ) -> tuple[list[Kind], list[int], np.ndarray, np.ndarray]:
        """Return the kinds of some pairs, and by what what goes is smaller than the whole value.

        Then follow the first pair of each kind, and the place of each pair's kind among them.

        Args:
            starts: number of the first sharding of each pair.
            goals: number of the second one.
            shape: of the tensor.
        """
        rank = self._ranks[len(shape)]
        dims, partials = rank.list_dims(len(shape)), np.array(rank.partials)
        before, after = dims[starts], dims[goals]
        uneven, counts = self._find_uneven(before, after, shape)
        stays = (before == after) & (uneven == 0)
        parts = np.where(stays, counts, 1).prod(axis=1)
        count = len(self._axes)
        # What goes to one goal stands together: steps on the way to it are found once.
        numbers = np.where(stays, 0, (uneven * count + after) * count + before)
        is_fixed = self._find_fixed(rank, starts, goals)
        places = np.where(numbers > 0, np.arange(1, len(shape) + 1), 0)
        order = np.where(is_fixed[:, None], places, numbers).argsort(axis=1, kind="stable")
        columns = np.take_along_axis(numbers, order, axis=1).T
        ends = partials[starts], partials[goals]
        kept = np.where(stays, np.array(self._masks)[before], 0).sum(axis=1)
        first, alike = _find_alike([is_fixed, kept, *ends, *columns])
        rows = zip(is_fixed[first], *(partial[first] for partial in ends), strict=True)
        codes = uneven << 2 * BITS | after << BITS | before
        codes = np.take_along_axis(np.where(stays, 0, codes)[first], order[first], axis=1)
        kinds = [
            self._rename((int(flag), *self._leave_out_common(one, other), *filter(None, used)))
            for (flag, one, other), used in zip(rows, codes.tolist(), strict=True)
        ]
        return kinds, parts[first].tolist(), first, alike

    def find_typical(self, kind: Kind) -> Typical:
        """Return a pair of a kind.

        The last dimension of the tensor is not split; the others have the least sizes, or those
        that make a difference.
        """
        axes, sizes, low = list(self._axes), list(self._sizes), 2**BITS - 1
        after = tuple(axes[code >> BITS & low] for code in kind[3:])
        before = tuple(axes[code & low] for code in kind[3:])
        uneven = [code >> 2 * BITS for code in kind[3:]]
        shape = [
            sizes[number - 1] if number else self._mesh.product({*one, *other})
            for number, one, other in zip(uneven, before, after, strict=True)
        ]
        start = Sharding(self._mesh, (*before, ()), self._list_pending(kind[1]))
        goal = Sharding(self._mesh, (*after, ()), self._list_pending(kind[2]))
        return start, goal, TensorType((*shape, 1), DType.int8)

    def _rename(self, kind: Kind) -> Kind:
        """Return the least of the kinds that are this one but for the names of axes."""
        if kind not in self._renamed:
            others = (self._rename_axes(kind, names) for names in self._renamings)
            self._renamed[kind] = min((kind, *others))
        return self._renamed[kind]

    def _rename_axes(self, kind: Kind, names: Renaming) -> Kind:
        is_fixed, one, other, *codes = kind
        low, axes = 2**BITS - 1, list(self._axes)
        renamed = [
            code >> 2 * BITS << 2 * BITS
            | self._number_axes(tuple(names[axis] for axis in axes[code >> BITS & low])) << BITS
            | self._number_axes(tuple(names[axis] for axis in axes[code & low]))
            for code in codes
        ]
        partials = (
            self._number_partial(frozenset((names[axis], how) for axis, how in self._pending[at]))
            for at in (one, other)
        )
        return (is_fixed, *partials, *(renamed if is_fixed else sorted(renamed)))

    def _leave_out_common(self, one: int, other: int) -> tuple[int, int]:
        """Return numbers of what is partial without what stays so, or becomes so for nothing."""
        if (one, other) not in self._changes:
            before, after = self._pending[one], self._pending[other]
            held = {axis for axis, _ in before}
            made = {pair for pair in after - before if pair[1] != "sum" or pair[0] in held}
            changes = self._number_partial(before - after), self._number_partial(frozenset(made))
            self._changes[one, other] = changes
        return self._changes[one, other]

    def _list_pending(self, number: int) -> tuple[tuple[str, str], ...]:
        names = self._mesh.names
        return tuple(sorted(self._pending[number], key=lambda pending: names.index(pending[0])))

    def _number_partial(self, pending: frozenset[tuple[str, str]]) -> int:
        number = self._partials.setdefault(pending, len(self._pending))
        if number == len(self._pending):
            self._pending.append(pending)
        return number

    def _number(self, rank: _Rank, sharding: Sharding) -> int:
        number = rank.numbers.setdefault(sharding, len(rank.shardings))
        if number == len(rank.shardings):
            rank.shardings.append(sharding)
            rank.dims.append([self._number_axes(axes) for axes in sharding.dims])
            places = (sharding.dimension_of(axis) for axis in self._mesh.names)
            rank.places.append([-1 if place is None else place for place in places])
            rank.partials.append(self._number_partial(frozenset(sharding.partial)))
        return number

    def _number_axes(self, axes: tuple[str, ...]) -> int:
        number = self._axes.setdefault(axes, len(self._axes))
        if number == len(self._masks):
            self._masks.append(sum(1 << self._mesh.names.index(axis) for axis in axes))
        return number

    def _find_uneven(
        self, before: np.ndarray, after: np.ndarray, shape: Shape
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return for each dimension of each pair a number of its size, 0 where axes divide it.

        And into how many parts these axes cut it.
        """
        masks = np.array(self._masks)
        both = masks[before] | masks[after]
        parts = np.ones_like(both)
        for at, axis in enumerate(self._mesh.axes):
            parts[(both >> at & 1).astype(bool)] *= axis.size
        sizes = [self._sizes.setdefault(size, len(self._sizes) + 1) for size in shape]
        is_even = np.array(shape, dtype=np.int64) % parts == 0
        return np.where(is_even, 0, np.array(sizes, dtype=np.int64)), parts

    def _find_fixed(self, rank: _Rank, starts: np.ndarray, goals: np.ndarray) -> np.ndarray:
        """Return whether the order of dimensions makes a difference, for each pair."""
        places = np.array(rank.places)
        before, after = places[starts].T, places[goals].T
        fixed = np.full(len(starts), len(before) > FEW_AXES)
        for one, other in itertools.combinations(range(len(before)), 2):
            leave = (after[[one, other]] >= 0) & (after[[one, other]] != before[[one, other]])
            together = (before[one] == before[other]) & (before[one] >= 0)
            fixed |= together & leave.all(axis=0) & (after[one] != after[other])
        return fixed


class _Rank:
    """What is known of the shardings of tensors of one rank.

    Each has the axes of its dimensions, the dimension of each axis, and what is partial, by number.
    """

    def __init__(self) -> None:
        self.shardings: list[Sharding] = []
        self.numbers: dict[Sharding, int] = {}
        self.tuples: dict[int, tuple[tuple[Sharding, ...], np.ndarray]] = {}
        self.dims: list[list[int]] = []
        self.places: list[list[int]] = []
        self.partials: list[int] = []

    def list_dims(self, rank: int) -> np.ndarray:
        """Return the axes of each dimension of each sharding."""
        return np.array(self.dims, dtype=np.int64).reshape(len(self.dims), rank)


def _find_alike(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of the rows that are equal, and which of these each row is equal to.

    Args:
        columns: whole numbers, none below 0.
    """
    numbers, count = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        most = int(column.max(initial=0)) + 1
        if count * most >= WORD:
            values, numbers = np.unique(numbers, return_inverse=True)
            count = len(values)
        numbers, count = numbers * most + column, count * most
    _, first, alike = np.unique(numbers, return_index=True, return_inverse=True)
    return first, alike
