"""What moves of values cost, as tables over how one or two variables stand.

All of it counts, or what nobody waits for only in part: a term is kept as it was found, and its
table made for a share.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from mithril.ir import Value
from mithril.sharding.eliminate import Table
from mithril.sharding.move_prices import MovePrices


@dataclass(frozen=True, slots=True, eq=False)
class MoveTerm:
    """What moves of a value cost.

    Args:
        variables: by how these stand, one or two or none.
        prices: of each move, with dimensions of one entry where nothing is to be chosen.
        times: how often it is made.
        value: for whose sake; whether anything waits for that is known.
        is_turned: whether the second dimension of prices is that of the first variable.
    """

    variables: tuple[int, ...]
    prices: np.ndarray
    times: int
    value: Value
    is_turned: bool = False

    def tabulate(self, moves: MovePrices, idle: Collection[Value], hidden: float) -> Table:
        """Return it as a table.

        Args:
            moves: keeps arrays, so that equal ones are one.
            idle: values whose moves nobody waits for.
            hidden: the part of the seconds of these that does not count.
        """
        paid = self.times * (1.0 - hidden) if self.value in idle else self.times
        prices = moves.shape(self.prices, paid, is_turned=self.is_turned)
        return Table(self.variables, prices.squeeze() if 1 in prices.shape else prices)
