"""Windows that slide along one dimension: what they read, and the transpose of that.

A pooling op works on one dimension after another; with k elements along each of n dimensions it
reads n k slices, not k to the n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True)
class Window:
    """A window of `length` elements that stands at `count` places, `step` apart, from `-before`.

    Args:
        axis: the dimension it slides along.
        size: of that dimension.
    """

    axis: int
    size: int
    count: int
    length: int
    step: int
    before: int

    def taps(self, x: mx.array, filling: Any) -> list[mx.array]:
        """Return for each element of the window what it reads at all places.

        Args:
            x: any array whose dimension `axis` has the size.
            filling: what stands in the padding, a scalar array.
        """
        after = self.step * (self.count - 1) + self.length - self.before - self.size
        x = shift(x, self.axis, self.before, after, filling)
        lead, last = (slice(None),) * self.axis, self.step * (self.count - 1) + 1
        return [x[(*lead, slice(k, k + last, self.step))] for k in range(self.length)]

    def spread(self, parts: Sequence[mx.array]) -> mx.array:
        """Return the transpose of `taps`: what was read, added up where it came from.

        Place p of part k goes to element `step p + k - before`. Elements that are equal modulo the
        step are added up together, without gaps, and then interleaved.
        """
        rows = -(-(self.before + self.size) // self.step)
        phases = [self._phase(parts[first :: self.step], rows) for first in range(self.step)]
        like = next(phase for phase in phases if phase is not None)
        found = [mx.zeros_like(like) if phase is None else phase for phase in phases]
        shape = list(like.shape)
        shape[self.axis] = rows * self.step
        whole = mx.stack(found, axis=self.axis + 1).reshape(shape) if self.step > 1 else found[0]
        surplus = rows * self.step - self.before - self.size
        return shift(whole, self.axis, -self.before, -surplus)

    def _phase(self, parts: Sequence[mx.array], rows: int) -> mx.array | None:
        total = None
        for delay, part in enumerate(parts[:rows]):
            moved = shift(part, self.axis, delay, rows - self.count - delay)
            total = moved if total is None else total + moved
        return total


def shift(x: mx.array, axis: int, before: int, after: int, filling: Any = 0) -> mx.array:
    """Return x with elements added at both ends of a dimension, or taken away where negative."""
    size, lead = x.shape[axis], (slice(None),) * axis
    if before < 0 or after < 0:
        x = x[(*lead, slice(max(0, -before), size - max(0, -after)))]
    if before > 0 or after > 0:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (max(0, before), max(0, after))
        x = mx.pad(x, widths, constant_values=filling)
    return x
