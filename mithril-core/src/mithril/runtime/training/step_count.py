"""How many steps a state has behind it, for what happens after some of them.

The number is an array of the state. It is read once of a state that is not known; from then on it
is counted, so that no step waits for the one before to end.
"""

from __future__ import annotations

from collections.abc import Sequence

from mithril.runtime.array import Array


class StepCounter:
    """Counts the steps of the state that came last."""

    def __init__(self) -> None:
        self._made: tuple[Array | None, int] = None, 0

    def read(self, step: Array) -> int:
        """Return how many steps were made.

        Args:
            step: of a state.
        """
        if self._made[0] is not step:
            self._made = step, int(step.item())
        return self._made[1]

    def remember(self, step: Array, number: int) -> None:
        """Remember what `read` returns of a step."""
        self._made = step, number


class Warmup:
    """Says which plan a step runs while some gradients are not compressed yet.

    Args:
        warmups: after how many steps more of them are, in order.
    """

    def __init__(self, warmups: Sequence[int]) -> None:
        self._warmups, self._counter = warmups, StepCounter()

    def find(self, step: Array) -> int | None:
        """Return after how many steps the next one's plan begins; None for the last plan.

        Args:
            step: of the state that the next step is given.
        """
        if not self._warmups:
            return None
        number = self._counter.read(step)
        begun = [count for count in (0, *self._warmups) if count <= number]
        return None if begun[-1] == self._warmups[-1] else begun[-1]

    def count(self, before: Array, after: Array) -> None:
        """Count a step that was made.

        Args:
            before: the step of the state that it was given.
            after: that of the one it returned.
        """
        if self._warmups:
            self._counter.remember(after, self._counter.read(before) + 1)


__all__ = ["StepCounter", "Warmup"]
