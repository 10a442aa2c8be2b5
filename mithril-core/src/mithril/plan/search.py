"""What a search over shardings has found, as data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mithril.units import format_bytes, format_seconds

BYTES, PICOSECONDS = "bytes", "picoseconds"
"""What costs are counted in."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search has found.

    Args:
        objective: what was minimised.
        space: what might be split.
        unit: what cost and bound are counted in.
        cost: of what was found.
        bound: what nothing in the spaces that were searched costs less than.
        seconds: predicted seconds of work and moves, one after another.
        memory: predicted bytes of a device at the fullest of the moments that the search knows.
        limit: the bytes that these were to keep below; None for no limit.
        variables: how many were chosen.
        combinations: the decimal logarithm of how many ways there are to choose them.
        wall: seconds that the search took, which no two processes agree on.
    """

    objective: str
    space: str
    unit: str
    cost: float
    bound: float
    seconds: float
    memory: int
    limit: int | None
    variables: int
    combinations: float
    wall: float = field(default=0.0, compare=False)

    @property
    def is_exact(self) -> bool:
        """Whether nothing in the spaces is better."""
        return self.gap == 0.0

    @property
    def gap(self) -> float:
        """By what part of the cost the best may be better; 0 if nothing is."""
        missing = self.cost - self.bound
        return missing / self.cost if missing > NEAR * self.cost else 0.0

    def against(self, first: SearchResult) -> SearchResult:
        """Return what was found with the bound of a search that had more memory.

        Args:
            first: that search; its bound holds for all with less.
        """
        if first is self:
            return self
        wall = first.wall + self.wall
        cost = self.cost if first.unit == self.unit else self.seconds * 1e12
        return replace(first, cost=cost, seconds=self.seconds, memory=self.memory, wall=wall)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return it as text, line by line."""
        count = f"{self.variables} variables, 10^{self.combinations:.0f} combinations"
        head = f"search for {self.objective} over '{self.space}': {count}"
        cost, bound = (self._write(number) for number in (self.cost, self.bound))
        proof = "the best" if self.is_exact else f"gap {100 * self.gap:.3g} %"
        limit = "" if self.limit is None else f" of {format_bytes(self.limit)}"
        return [
            head,
            f"  cost {cost}, at least {bound}: {proof}",
            f"  predicted {format_seconds(self.seconds)} one after another, "
            f"{format_bytes(self.memory)}{limit} between phases",
        ]

    def _write(self, number: float) -> str:
        return format_bytes(number) if self.unit == BYTES else format_seconds(number * 1e-12)


NEAR = 1e-7
"""Of a cost, a part that is nothing: plans tie that differ by picoseconds of a step."""


__all__ = ["BYTES", "PICOSECONDS", "SearchResult"]
