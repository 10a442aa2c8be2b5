"""Which device writes which part of an array: one of those that hold it, by turns.

Every process works that out for itself, and all find the same, so that nothing has to be said.
"""

from __future__ import annotations

from functools import lru_cache

from mithril.checkpoints.index import Edges
from mithril.mesh import Sharding, edges
from mithril.types import Shape, TensorType


class Owners:
    """Shares out the parts of arrays among their holders, so that each writes about as much."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def share_out(self, type: TensorType, sharding: Sharding) -> dict[Edges, int]:
        """Return for each part that has elements the device that writes it.

        An array without elements is one part.

        Args:
            type: of the array.
            sharding: how it lies.
        """
        chosen = {}
        for box, devices in find_holders(sharding, type.shape).items():
            owner = min(devices, key=lambda d: (self._bytes.get(sharding.mesh.in_whole(d), 0), d))
            index = sharding.mesh.in_whole(owner)
            size = type.dtype.itemsize
            for start, stop in box:
                size *= stop - start
            self._bytes[index] = self._bytes.get(index, 0) + size
            chosen[box] = owner
        return chosen


@lru_cache(maxsize=256)
def find_holders(sharding: Sharding, shape: Shape) -> dict[Edges, tuple[int, ...]]:
    """Return the devices that hold each distinct part of an array of a shape."""
    found: dict[Edges, list[int]] = {}
    for device in range(sharding.mesh.size):
        found.setdefault(edges(sharding.box(device, shape)), []).append(device)
    if 0 in shape:
        return {tuple((0, size) for size in shape): tuple(range(sharding.mesh.size))}
    return {box: tuple(held) for box, held in found.items() if all(a < b for a, b in box)}
