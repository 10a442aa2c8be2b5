"""How much of the kit runs: three levels, and the first case of each kind for the smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from typing import TypeVar

Item = TypeVar("Item")


class Level(StrEnum):
    """How much is tried: each level has all of the one before it.

    `smoke`: one case of every op, collectives, one model; seconds. `basic`: all cases, gradients,
    16-bit floats, models, loops, stages and what else a user of the backend meets; a minute or two.
    `full`: every dtype of every case, more meshes, every layer.
    """

    smoke = "smoke"
    basic = "basic"
    full = "full"

    @property
    def rank(self) -> int:
        """Its place in the order, from 0."""
        return list(Level).index(self)


def first_of_each(cases: Iterable[Item], kind: Callable[[Item], Hashable]) -> list[Item]:
    """Return the first case of each kind, in order.

    >>> first_of_each(["ax", "bx", "ay"], lambda text: text[0])
    ['ax', 'bx']
    """
    found: dict[Hashable, Item] = {}
    for case in cases:
        found.setdefault(kind(case), case)
    return list(found.values())
