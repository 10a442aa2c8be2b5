"""Prices of moves between the shardings that values may have, as tables of whole numbers.

Equal blocks of a model, the spaces that are searched one after the other, and other ways to compute
the same ask for the same moves again: each pair is looked up once, and equal blocks share arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mithril.mesh import Sharding
from mithril.sharding.reshard import Resharder
from mithril.types import TensorType

FORBIDDEN = float("inf")
PRICE_UNIT = 64.0  # one picosecond; what lies below breaks ties
# Prices are multiples of PRICE_UNIT; each weight is less than that, so it decides among equal ones.
COLLECTIVE_TIE = 1.0  # fewer collectives first

Price = Callable[[TensorType, Sharding, Sharding], float]
"""The price of moving a value of some type from one sharding to another."""


class MovePrices:
    """The prices of moves on one mesh, found once.

    Args:
        resharder: finds the paths.
    """

    def __init__(self, resharder: Resharder) -> None:
        self.resharder = resharder
        self._tables: dict[
            tuple[Price, TensorType, tuple[Sharding, ...], tuple[Sharding, ...]], np.ndarray
        ] = {}
        self._pairs: dict[tuple[Price, TensorType], dict[Sharding, dict[Sharding, float]]] = {}
        self._shaped: dict[tuple[int, float, bool], tuple[np.ndarray, np.ndarray]] = {}

    def tabulate(
        self,
        price: Price,
        type: TensorType,
        starts: tuple[Sharding, ...],
        goals: tuple[Sharding, ...],
    ) -> np.ndarray:
        """Return the price from each start to each goal."""
        key = (price, type, starts, goals)
        if key not in self._tables:
            rows = self._pairs.setdefault((price, type), {})
            for start in starts:
                row = rows.setdefault(start, {})
                for goal in goals:
                    if goal not in row:
                        row[goal] = price(type, start, goal)
            self._tables[key] = np.array([[rows[s][g] for g in goals] for s in starts])
        return self._tables[key]

    def shape(self, prices: np.ndarray, times: float, *, is_turned: bool = False) -> np.ndarray:
        """Return prices as often as they are paid; equal blocks get the same array.

        Args:
            prices: a table.
            times: how often a loop around runs, or the part of it that something waits for.
            is_turned: whether the table is wanted with its columns first.
        """
        key = (id(prices), times, is_turned)
        if key not in self._shaped:
            turned = prices.T if is_turned else prices
            self._shaped[key] = prices, multiply(turned, times)
        return self._shaped[key][1]

    def use(self, type: TensorType, home: Sharding, need: Sharding) -> float:
        """Return the price of bringing a value from its home to a node that needs it.

        Once it has been reduced nobody uses its partial form: it is reduced on the way home.
        """
        if not set(home.partial) <= set(need.partial):
            return FORBIDDEN
        return self.move(type, home, need)

    def leave(self, type: TensorType, home: Sharding, goals: Sequence[Sharding]) -> float:
        """Return the price of bringing an output from its home to all shardings it leaves in."""
        if home.partial:
            return FORBIDDEN
        return sum(self.move(type, home, goal) for goal in dict.fromkeys(goals))

    def move(self, type: TensorType, start: Sharding, goal: Sharding) -> float:
        """Return the price of a move; infinite where there is none."""
        if start == goal:
            return 0.0
        for axis, reduction in goal.partial:
            held = start.reduction_of(axis)
            if held != reduction and not (held is None and reduction == "sum"):
                return FORBIDDEN  # only a sum can be made partial
        path = self.resharder.find_path(start, goal, type)
        if path is None:
            return FORBIDDEN
        return path.price * PRICE_UNIT + path.collectives * COLLECTIVE_TIE


def multiply(prices: np.ndarray, times: float) -> np.ndarray:
    """Return whole prices as often as they are paid; what breaks ties is not made less."""
    if times >= 1 and times == int(times):
        return prices * times
    admitted = np.isfinite(prices)
    whole = np.where(admitted, prices, 0.0) // PRICE_UNIT
    ties = np.where(admitted, prices, 0.0) - whole * PRICE_UNIT
    return np.where(admitted, np.round(whole * times) * PRICE_UNIT + ties, prices)


__all__ = ["FORBIDDEN", "PRICE_UNIT", "MovePrices", "multiply"]
