"""Prices of moves between the shardings that values may have, as tables of whole numbers.

Equal blocks of a model, the spaces that are searched one after the other, and other ways to compute
the same ask for the same moves again: each pair of a type is looked up once, and equal blocks share
arrays. Values of different shapes make the same moves, so that a path is looked for once for all
pairs that are alike, and as many bytes.
"""

from __future__ import annotations

import numpy as np

from mithril.mesh import Sharding
from mithril.sharding.alike import Kind, Pairs
from mithril.sharding.eliminate import Steps
from mithril.sharding.interchange import list_renamings
from mithril.sharding.lists import Lists
from mithril.sharding.option import KnownOptions
from mithril.sharding.reshard import Resharder
from mithril.sharding.routes import Routes
from mithril.types import DType, TensorType

FORBIDDEN = float("inf")
PRICE_UNIT = 64.0  # one picosecond; what lies below breaks ties
# Prices are multiples of PRICE_UNIT; each weight is less than that, so it decides among equal ones.
COLLECTIVE_TIE = 1.0  # fewer collectives first

Shardings = tuple[Sharding, ...]
"""Where a value may lie; tables over one tuple are looked up, those over an equal one are made."""


class MovePrices:
    """The prices of moves on one mesh, found once.

    Tables are looked up by the lists that they are over, so these are kept beside them: what equal
    nodes of several graphs have in common is one object for all of them.

    Args:
        resharder: finds the paths.

    Attributes:
        lists: of shardings.
        options: of nodes, which lists are made of.
        work: prices of options, by the tuple of these and how often a loop around runs.
        steps: of eliminations of tables.
    """

    def __init__(self, resharder: Resharder) -> None:
        self.resharder = resharder
        self.lists = Lists()
        self.options: KnownOptions = {}
        self.work: dict[tuple[int, int], np.ndarray] = {}
        self.steps = Steps()
        self._pairs = Pairs(resharder.mesh, list_renamings(resharder.mesh, resharder.hardware))
        self._tables: dict[
            tuple[str, TensorType, int, int], tuple[Shardings, Shardings, np.ndarray]
        ] = {}
        self._known: dict[TensorType, np.ndarray] = {}
        self._prices: dict[tuple[int, DType], dict[Kind, float]] = {}
        self._routes: dict[tuple[Kind, DType], Routes] = {}
        self._shaped: dict[tuple[int, float, bool], tuple[np.ndarray, np.ndarray]] = {}

    def tabulate(self, type: TensorType, starts: Shardings, goals: Shardings) -> np.ndarray:
        """Return the price of moving a value from each start to each goal."""
        key = ("move", type, id(starts), id(goals))
        if key not in self._tables:
            wanted = np.ones((1, 1), dtype=bool)
            self._tables[key] = starts, goals, self._tabulate(type, starts, goals, wanted)
        return self._tables[key][2]

    def tabulate_kept(self, type: TensorType, starts: Shardings, homes: Shardings) -> np.ndarray:
        """Return the price of leaving a value as it is made, or of reducing it; no other is needed.

        Where it is partial it may be reduced into any home, as a scatter costs less than a sum, and
        where it may not lie as it is made it goes to any that is admitted.
        """
        key = ("kept", type, id(starts), id(homes))
        if key not in self._tables:
            places = {home: place for place, home in enumerate(homes)}
            wanted = np.zeros((len(starts), len(homes)), dtype=bool)
            for row, start in enumerate(starts):
                wanted[row, slice(None) if start.partial else places.get(start, slice(None))] = True
            self._tables[key] = starts, homes, self._tabulate(type, starts, homes, wanted)
        return self._tables[key][2]

    def tabulate_uses(self, type: TensorType, homes: Shardings, needs: Shardings) -> np.ndarray:
        """Return the price of bringing a value from each home to a node that needs it so.

        Once it has been reduced nobody uses its partial form: it is reduced on the way home.
        """
        key = ("use", type, id(homes), id(needs))
        if key not in self._tables:
            wanted = self._pairs.keeps_partial(homes, needs)
            self._tables[key] = homes, needs, self._tabulate(type, homes, needs, wanted)
        return self._tables[key][2]

    def tabulate_exits(self, type: TensorType, homes: Shardings, goals: Shardings) -> np.ndarray:
        """Return the price of bringing an output from each home to where it may leave."""
        key = ("exit", type, id(homes), id(goals))
        if key not in self._tables:
            is_whole = np.array([[not home.partial] for home in homes])
            self._tables[key] = homes, goals, self._tabulate(type, homes, goals, is_whole)
        return self._tables[key][2]

    def leave(self, type: TensorType, homes: Shardings, goals: Shardings) -> np.ndarray:
        """Return the price of bringing an output from each home to all shardings it leaves in."""
        partial = np.array([FORBIDDEN if home.partial else 0.0 for home in homes])
        total: np.ndarray = partial + self.tabulate_exits(type, homes, goals).sum(axis=1)
        return total

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

    def _tabulate(
        self, type: TensorType, starts: Shardings, goals: Shardings, wanted: np.ndarray
    ) -> np.ndarray:
        """Return the prices that are wanted, of each pair or of all; others are infinite."""
        rows, columns = self._pairs.number(starts), self._pairs.number(goals)
        known = self._find_known(type)
        found = known[np.ix_(rows, columns)]
        missing = np.argwhere(np.isnan(found) & wanted)
        if missing.size:
            self._fill(type, known, rows[missing[:, 0]], columns[missing[:, 1]])
            found = known[np.ix_(rows, columns)]
        return np.where(wanted, found, FORBIDDEN)

    def _find_known(self, type: TensorType) -> np.ndarray:
        """Return the prices between all shardings that have numbers; not a number: not known."""
        count, known = self._pairs.count(type.rank), self._known.get(type)
        if known is None or len(known) < count:
            larger = np.full((2 * count, 2 * count), np.nan)
            if known is not None:
                larger[: len(known), : len(known)] = known
            self._known[type] = known = larger
        return known

    def _fill(
        self, type: TensorType, known: np.ndarray, starts: np.ndarray, goals: np.ndarray
    ) -> None:
        """Enter the prices of some pairs."""
        kinds, parts, first, alike = self._pairs.find_kinds(starts, goals, type.shape)
        whole, dtype = type.nbytes, self.resharder.find_counted(type.dtype)
        prices = []
        for kind, part, pair in zip(kinds, parts, first, strict=True):
            nbytes = whole // part
            of_amount = self._prices.setdefault((nbytes, dtype), {})
            if kind not in of_amount:
                start = self._pairs.find_sharding(type.rank, starts[pair])
                goal = self._pairs.find_sharding(type.rank, goals[pair])
                of_amount[kind] = self._price(start, goal, kind, nbytes, dtype)
            prices.append(of_amount[kind])
        known[starts, goals] = np.array(prices)[alike]

    def _price(
        self, start: Sharding, goal: Sharding, kind: Kind, nbytes: int, dtype: DType
    ) -> float:
        """Return the price of moving so many bytes between a pair of a kind; infinite: no way."""
        if not _is_possible(start, goal):
            return FORBIDDEN
        key = kind, dtype
        if key not in self._routes:
            self._routes[key] = Routes(self.resharder, self._pairs.find_typical(kind), dtype)
        path = self._routes[key].find(nbytes)
        if path is None:
            return FORBIDDEN
        return path.price * PRICE_UNIT + path.collectives * COLLECTIVE_TIE


def _is_possible(start: Sharding, goal: Sharding) -> bool:
    """Whether what is partial in the goal is so before, or is a sum that can be made of a value."""
    held = dict(start.partial)
    return all(held.get(axis, "sum") == reduction for axis, reduction in goal.partial)


def multiply(prices: np.ndarray, times: float) -> np.ndarray:
    """Return whole prices as often as they are paid; what breaks ties is not made less."""
    if times >= 1 and times == int(times):
        return prices * times
    admitted = np.isfinite(prices)
    whole = np.where(admitted, prices, 0.0) // PRICE_UNIT
    ties = np.where(admitted, prices, 0.0) - whole * PRICE_UNIT
    return np.where(admitted, np.round(whole * times) * PRICE_UNIT + ties, prices)


__all__ = ["FORBIDDEN", "PRICE_UNIT", "MovePrices", "multiply"]
