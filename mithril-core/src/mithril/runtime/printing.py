"""An array as text, and as a table of where its parts lie.

All values of a small array are printed, of a large one both ends of each dimension.

Only what is shown is brought to the host whole; of every part no more than that is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from mithril.mesh import Sharding
from mithril.mesh.tables import tabulate_boxes
from mithril.tables import Table
from mithril.types import DType, Shape, TensorType

SHOWN, EDGE = 20, 3
"""An array of more elements is printed with so many at both ends of each dimension."""


class Printed(Protocol):
    """What printing asks of an array."""

    shards: object

    @property
    def type(self) -> TensorType:
        """Global shape and dtype."""

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

    @property
    def is_addressable(self) -> bool:
        """Whether this process can read it."""

    def list_holders(self) -> list[int]:
        """Return one device of this process for each distinct part."""

    def read_part(self, device: int) -> np.ndarray:
        """Return what a device holds."""


def print_array(x: Printed) -> str:
    """Return values, type and sharding of an array; why there are no values, if there are none."""
    lies = x.sharding.describe()
    if not x.is_addressable:
        return f"Array(of several processes, {x.type}, {lies})"
    if x.shards is None:  # as a framework's tree that has been emptied
        return f"Array(without values, {x.type}, {lies})"
    return f"Array({print_values(x, x.list_holders())}, {x.type}, {lies})"


def tabulate_array(x: Printed) -> Table:
    """Return which devices hold which part of an array, and the values of a small one."""
    sharding = x.sharding
    title = f"Array {x.type} {sharding.describe()} on {sharding.mesh!r}"
    notes = [f"each device holds {sharding.local_shape(x.shape)}"]
    if x.size <= SHOWN and x.is_addressable and x.shards is not None:
        notes.append(print_values(x, x.list_holders()))
    return tabulate_boxes(title, len(x.shape), sharding.find_holders(x.shape), tuple(notes))


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
