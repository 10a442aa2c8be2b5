"""Donation: arrays that a caller gives up, so that results may take their memory.

A donated array keeps its type and sharding and nothing else: whoever reads its values is told who
took them, on every backend alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

from mithril.errors import BackendError
from mithril.runtime.array import Array

_shards: Any = vars(Array)["shards"]  # the slot of the base class: the name of who took them


class DonatedArray(Array):
    """An array whose memory was given away."""

    __slots__ = ()

    @property
    def shards(self) -> Any:
        """The parts: gone."""
        raise BackendError(
            f"array {self.type} was donated to {_shards.__get__(self)} and holds no values any "
            f"more; use what was returned, or donate a copy where you need the old values"
        )

    def __repr__(self) -> str:
        return f"DonatedArray({self.type}, {self.sharding.describe()})"


def _count_held_by_one() -> int:
    """Return how often a handle is referred to, as `check_donated` counts, that one array has."""
    array = [object()]
    shards = [array[0]]
    return max(map(getrefcount, shards), default=0)


_HELD_BY_ONE = _count_held_by_one()


def give_up(arrays: Sequence[Array], positions: Sequence[int], takers: Sequence[str]) -> None:
    """Take their values from arrays; each stays what it is, without values.

    Args:
        arrays: everything that is passed.
        positions: of those that are given up.
        takers: who takes each of all, for messages.
    """
    for position in positions:
        array = arrays[position]
        array.shards = takers[position]
        array.__class__ = DonatedArray


def give_up_moved(given: Sequence[Any], arrays: Sequence[Array], donated: Sequence[int]) -> None:
    """Take their values from arrays that were moved, or converted, before they were given up.

    Args:
        given: what users passed.
        arrays: the same on the devices; what is donated of it has been given up.
        donated: positions of what is given up.
    """
    for position in donated:
        x = given[position]
        if isinstance(x, Array) and x is not arrays[position]:
            give_up([x], [0], [_shards.__get__(arrays[position])])


def check_donated(
    arrays: Sequence[Array], shards: Sequence[Any], names: Sequence[str], donated: Sequence[int]
) -> None:
    """Raise if an array is donated and also needed otherwise.

    Args:
        arrays: everything that is passed.
        shards: what each holds.
        names: what each is called.
        donated: positions of what is given up.

    Raises:
        BackendError: one array, or its memory, is at two places, one of which is donated.
    """
    # In a step with hundreds, a set of them is memory that no cache has.
    if max(map(getrefcount, shards), default=0) <= _HELD_BY_ONE:
        return
    if len(set(map(id, shards))) == len(shards):
        return
    held = list(map(id, shards))
    nothing = id(None)  # what a process has of an array that lies on devices of others alone
    given = {held[position]: position for position in donated if held[position] != nothing}
    for position, array in enumerate(arrays):
        first = given.get(held[position], position)
        if first != position:
            raise BackendError(
                f"array {array.type} is donated as '{names[first]}' and also passed as "
                f"'{names[position]}'; donate a copy, or leave '{names[first]}' out of donate=…"
            )
