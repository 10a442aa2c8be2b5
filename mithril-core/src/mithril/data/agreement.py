"""Ready batches of several processes: whether the rows of each make one batch together.

Asking the others takes a round of messages, which waits for the devices, and is done seldom: for
the first batch of a loop, and for the last one of an epoch where its number is known. Every batch
in between has the types of the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from mithril.data.items import LONE
from mithril.data.placing import HostBatch
from mithril.errors import ShapeError
from mithril.mesh import PartitionSpec, Sharding
from mithril.runtime.backend import Backend
from mithril.trees import names
from mithril.types import DType, TensorType


@dataclass
class Agreement:
    """What the batches of a loop have to be for all processes to go on.

    Args:
        backend: they are arrays of it.
        count: how many an epoch has; None where nobody knows.
        first: what the first one of the loop is.
    """

    backend: Backend
    count: int | None
    first: str = ""

    def check(self, batch: HostBatch, is_last: bool) -> None:
        """Raise unless a batch goes with those that the other processes have.

        Args:
            batch: the next one of the loop.
            is_last: whether it is known to be the last one of its epoch, as it is everywhere.

        Raises:
            ShapeError: it does not.
        """
        found = _describe(batch)
        if is_last or not self.first:
            self._compare(batch, found)
        elif found != self.first:
            raise ShapeError(
                f"ready batch of this process makes {found} with those of others, and the first "
                f"one of the loop made {self.first}, as others may do still; drop or pad rows that "
                f"fill no batch, or give a loader that has a length, whose last batch may differ"
            )
        self.first = self.first or found

    def _compare(self, batch: HostBatch, found: str) -> None:
        """Raise unless all processes have such a batch, and as many of them."""
        rows = batch.parts[0].type.shape[0] if batch.parts else 0
        own = np.array([rows, crc32(f"{found} {self.count}".encode()) >> 1], np.int32)
        mesh = self.backend.mesh
        sharding = Sharding.of(mesh, PartitionSpec(mesh.names), 2)
        type = TensorType((mesh.size, len(own)), DType.int32)
        given = self.backend.place(
            type, sharding, lambda box: np.tile(own, (box[0].stop - box[0].start, 1))
        ).numpy()
        if np.any(given != own):
            counts = "" if self.count is None else f", {self.count} in an epoch"
            raise ShapeError(
                f"ready batches differ between processes: that of this one makes {found} with "
                f"those of others{counts}, and theirs have first dimensions of "
                f"{min(given[:, 0])} to {max(given[:, 0])}, or other fields or numbers of batches; "
                f"give as many rows and batches in every process"
            )


def _describe(batch: HostBatch) -> str:
    """Return the types of a batch, which consists of the rows of all processes."""
    fields = zip(names(batch.structure, ""), batch.parts, strict=True)
    return ", ".join(f"{name or LONE}: {part.type}" for name, part in fields)


__all__ = ["Agreement"]
