"""The devices that take part in a collective, and what one of them does in its rounds.

Every device runs the same program. So rows of a buffer are first put in an order that is counted
from the device itself (`rotate`, `mirror`); then all devices send the same rows, to partners that
lie at the same distance, and nothing else depends on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mithril.ir import Builder, Op, Tensor
from mithril.ops import add, bitwise_xor, iota, logical_and, maximum, minimum, take
from mithril.ops.collective import AxisIndex, Permute

Pairs = tuple[tuple[int, int], ...]
Combine = Callable[[Any, Any], Any]
COMBINE: dict[str, Combine] = {"sum": add, "max": maximum, "min": minimum}
"""How two terms of a reduction are put together."""


@dataclass(slots=True)
class Members:
    """The devices that differ in their coordinates on some axes.

    Args:
        builder: of the local program.
        axes: these axes, major first.
        count: how many members there are.
    """

    builder: Builder
    axes: tuple[str, ...]
    count: int
    _index: Tensor | None = field(default=None, init=False)

    @property
    def index(self) -> Any:
        """The number of this member."""
        if self._index is None:
            (self._index,) = self.builder.apply(AxisIndex(self.axes))
        return self._index

    def apply(self, op: Op, x: Tensor) -> Any:
        """Append an op of one operand and one result."""
        return self.builder.apply(op, x)[0]

    def send(self, x: Tensor, pairs: Pairs) -> Any:
        """Send x from member to member; who gets nothing has zeros."""
        return self.apply(Permute(self.axes, pairs), x)

    def shift(self, x: Tensor, distance: int) -> Any:
        """Send x to the member so far ahead; the last is followed by the first."""
        n = self.count
        return self.send(x, tuple((member, (member + distance) % n) for member in range(n)))

    def rotate(self, rows: Tensor) -> Any:
        """Return rows by member, n of them, in the order of the distance ahead of this member."""
        return take(rows, (self._numbers() + self.index) % self.count)

    def rotate_back(self, rows: Tensor) -> Any:
        """Return rows in the order of the distance ahead of this member by member."""
        return take(rows, (self._numbers() - self.index) % self.count)

    def reverse_back(self, rows: Tensor) -> Any:
        """Return rows in the order of the distance behind this member by member."""
        return take(rows, (self.index - self._numbers()) % self.count)

    def mirror(self, rows: Tensor, count: int) -> Any:
        """Return rows q of the first members, a power of two, at q XOR the number of this one.

        Doing it twice changes nothing. Members behind the first have the order of some other one.
        """
        own = self.index if count == self.count else self.index % count
        return take(rows, bitwise_xor(iota(self.index, (count,)), own))

    def _numbers(self) -> Any:
        return iota(self.index, (self.count,))

    def is_at(self, first: int, stride: int, stop: int) -> Any:
        """Return whether this member is in `range(first, stop, stride)`, where first < stride."""
        is_in_step = self.index % stride == first if stride < self.count else self.index == first
        return is_in_step if stop >= self.count else logical_and(is_in_step, self.index < stop)

    def exchange_bits(self, x: Tensor, distance: int, count: int) -> Any:
        """Swap x with the member whose number differs in one bit, among the first members."""
        return self.send(x, tuple((member, member ^ distance) for member in range(count)))
