"""The values of an array as text: all of a small one, both ends of each dimension of a large one.

Only what is shown is brought to the host whole; of every part no more than that is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from mithril.mesh import Sharding
from mithril.types import DType, Shape

SHOWN, EDGE = 20, 3
"""An array of more elements is printed with so many at both ends of each dimension."""


class Printed(Protocol):
    """What printing asks of an array."""

    @property
    def shape(self) -> Shape:
        """Global sizes."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def dtype(self) -> DType:
        """Element type."""

    @property
    def sharding(self) -> Sharding:
        """How it lies."""

    def read_part(self, device: int) -> np.ndarray:
        """Return what a device holds."""


def print_values(x: Printed, devices: Iterable[int]) -> str:
    """Return values as NumPy prints them.

    Args:
        x: an array that this process can read.
        devices: one for each distinct part.
    """
    threshold = x.size if x.size <= SHOWN else 0
    return np.array2string(_glance(x, devices), separator=", ", threshold=threshold, edgeitems=EDGE)


def _glance(x: Printed, devices: Iterable[int]) -> np.ndarray:
    """Return what is shown of the array: of a long dimension both ends, and one in between."""
    picks = [np.arange(size) for size in x.shape]
    if x.size > SHOWN:
        ends = 2 * EDGE + 1
        picks = [p if len(p) < ends else np.r_[p[: EDGE + 1], p[-EDGE:]] for p in picks]
    seen = np.empty([len(p) for p in picks], x.dtype.numpy)
    for device in devices:
        box = x.sharding.box(device, x.shape)
        inside = [(p >= cut.start) & (p < cut.stop) for p, cut in zip(picks, box, strict=True)]
        local = [p[i] - cut.start for p, i, cut in zip(picks, inside, box, strict=True)]
        seen[np.ix_(*inside)] = x.read_part(device)[np.ix_(*local)]
    return seen
