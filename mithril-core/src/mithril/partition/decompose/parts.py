"""Parts of values: chunks at places that are known, and those of members, counted from a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mithril.ir import Builder, Tensor
from mithril.ops.collective import Permute, TakeShard
from mithril.ops.slicing import Slice
from mithril.partition.algorithms.members import Members


def cut_evenly(size: int, count: int) -> list[tuple[int, int]]:
    """Return where parts of a dimension start and stop, the longer ones first.

    >>> cut_evenly(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    least, over = divmod(size, count)
    edges = [number * least + min(number, over) for number in range(count + 1)]
    return list(pairwise(edges))


def slice_part(x: Tensor, at: int, start: int, stop: int) -> Any:
    """Return the elements of a dimension from one place to another."""
    starts = tuple(start if i == at else 0 for i in range(x.ndim))
    stops = tuple(stop if i == at else size for i, size in enumerate(x.shape))
    return x.builder.apply(Slice(starts, stops, (1,) * x.ndim), x)[0]


@dataclass(slots=True, eq=False)
class Places:
    """Takes the parts that belong to members at some distance behind the device.

    Args:
        builder: of the program.
    """

    builder: Builder
    _groups: dict[tuple[str, ...], Members] = field(default_factory=dict, init=False)
    _numbers: dict[tuple[tuple[str, ...], int], Any] = field(default_factory=dict, init=False)

    def find_group(self, axes: tuple[str, ...], count: int) -> Members:
        """Return the members that differ along some axes."""
        return self._groups.setdefault(axes, Members(self.builder, axes, count))

    def take(self, x: Tensor, at: int, axes: tuple[str, ...], count: int, distance: int) -> Any:
        """Return the part of x along a dimension that belongs to the member so far behind."""
        key = axes, distance
        if key not in self._numbers:
            index = self.find_group(axes, count).index
            self._numbers[key] = (index - distance) % count if distance else index
        return self.builder.apply(TakeShard(at, count), x, self._numbers[key])[0]


def pass_on(axes: tuple[str, ...], count: int) -> Permute:
    """Return the permute by which each member sends to the next, and the last to the first."""
    return Permute(axes, tuple((member, (member + 1) % count) for member in range(count)))


__all__ = ["Places", "cut_evenly", "pass_on", "slice_part"]
