"""Ready batches of several processes: whether the rows of each make one batch together.

Asking the others takes a round of messages, which waits for the devices, and is done seldom: for
the first batch of a loop, and for the last one of an epoch where its number is known. A process
that has no such batch, since it cannot be read, takes part as well: nobody waits for it in vain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from mithril.data.items import LONE
from mithril.data.order import Position
from mithril.data.placing import HostBatch
from mithril.errors import ShapeError
from mithril.runtime.backend import Backend
from mithril.runtime.processes import exchange
from mithril.trees import names

Read = tuple[HostBatch, Position]
"""A batch, and the position after it."""
UNREADABLE = (-1, -1)
"""What a process tells the others instead of its rows."""


@dataclass(frozen=True)
class Agreement:
    """What the batches of a loop have to be for all processes to go on.

    Args:
        backend: they are arrays of it.
        count: how many an epoch has; None where nobody knows.
    """

    backend: Backend
    count: int | None

    def check_each(self, batches: Iterator[Read]) -> Iterator[Read]:
        """Yield batches of a loop; those that are compared, when all processes have such a one.

        Raises:
            ShapeError: they have not.
        """
        is_due = True
        while True:
            try:
                read = next(batches, None)
            except Exception:  # the others wait for this process
                if is_due:
                    exchange(self.backend, UNREADABLE)
                raise
            if read is None:
                return
            batch, after = read
            if is_due:
                self._compare(batch)
            yield read
            is_due = (after.taken + 1) % self.count == 0 if self.count else False

    def _compare(self, batch: HostBatch) -> None:
        """Raise unless all processes have such a batch, and as many of them."""
        found = _describe(batch)
        rows = batch.parts[0].type.shape[0] if batch.parts else 0
        own = rows, crc32(f"{found} {self.count}".encode()) >> 1
        given = exchange(self.backend, own)
        if given.min() < 0:
            raise ShapeError(
                f"ready batch of another process cannot be read, and that of this one makes "
                f"{found} with it; see what that process says"
            )
        if (given != own).any():
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
