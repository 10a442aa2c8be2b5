"""Lists of the shardings that values may have, of which equal ones are one tuple.

Equal nodes share their options, and equal blocks their nodes; what follows from the same options is
listed once, and prices between two tuples are looked up by these (`move_prices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mithril.mesh import Sharding
from mithril.sharding.option import Option
from mithril.sharding.regions import add_leading_dim

Shardings = tuple[Sharding, ...]


class Lists:
    """The lists of one graph."""

    def __init__(self) -> None:
        self._lists: dict[Shardings, Shardings] = {}
        self._sides: dict[tuple[int, int, bool], tuple[Sequence[Option], Shardings]] = {}
        self._homes: dict[tuple[int, ...], tuple[Sequence[Shardings], Shardings]] = {}
        self._stacks: dict[int, tuple[Shardings, Shardings]] = {}
        self._single: dict[int, tuple[Shardings, bool]] = {}

    def join(self, shardings: Iterable[Sharding]) -> Shardings:
        """Return shardings as the one tuple of them."""
        found = tuple(shardings)
        return self._lists.setdefault(found, found)

    def of_operand(self, options: Sequence[Option], position: int) -> Shardings:
        """Return in which sharding each option needs an operand."""
        return self._of(options, position, is_result=False)

    def of_result(self, options: Sequence[Option], position: int) -> Shardings:
        """Return in which sharding each option makes a result."""
        return self._of(options, position, is_result=True)

    def _of(self, options: Sequence[Option], position: int, *, is_result: bool) -> Shardings:
        key = (id(options), position, is_result)
        if key not in self._sides:
            sides = (o.results if is_result else o.operands for o in options)
            self._sides[key] = options, self.join(side[position] for side in sides)
        return self._sides[key][1]

    def list_homes(
        self, produced: Shardings, needs: Sequence[Shardings], goals: Shardings
    ) -> Shardings:
        """Return where a value may live between its maker and its users.

        Args:
            produced: how it is made.
            needs: how each user needs it.
            goals: how it must leave.
        """
        lists = (produced, *needs, goals)
        key = tuple(map(id, lists))
        if key not in self._homes:
            reduced = (sharding.drop_partial() for sharding in produced)
            needed = (sharding for need in needs for sharding in need)
            found = self.join(dict.fromkeys((*produced, *reduced, *needed, *goals)))
            self._homes[key] = lists, found
        return self._homes[key][1]

    def stack(self, shardings: Shardings) -> Shardings:
        """Return the shardings of stacks of values that lie so."""
        if id(shardings) not in self._stacks:
            stacked = self.join(map(add_leading_dim, shardings))
            self._stacks[id(shardings)] = shardings, stacked
        return self._stacks[id(shardings)][1]

    def is_single(self, shardings: Shardings) -> bool:
        """Whether all are one and the same."""
        if id(shardings) not in self._single:
            self._single[id(shardings)] = shardings, len(set(shardings)) == 1
        return self._single[id(shardings)][1]
