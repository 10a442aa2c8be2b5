"""Reductions between the processes of a group on one host: each reads what others add to its part.

They go piece by piece, so that what was read is still in the cache when it is added, and no buffer
is needed for what comes. 16-bit floats are added in float32, and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch

from mithril_torch.program.runtime_library.host_channels import (
    Exposed,
    HostChannels,
    HostMessages,
    Label,
    Received,
    Sent,
)
from mithril_torch.program.runtime_library.row_reductions import COMBINE, wide_dtype

PIECE = 1 << 18
"""Bytes that are read, and added, at a time."""


class HostReduction:
    """This process's part of a reduction, on its way.

    Args:
        channels: to the others.
        label: of the messages.
        rows: what each of the others shall read, contiguous, by its place.
        own: what this process adds, as many tensors.
        totals: where its part of the reduction belongs; perhaps `own` themselves.
        reduction: `sum`, `max` or `min`.
    """

    def __init__(
        self,
        channels: HostChannels,
        label: Label,
        rows: dict[int, list[torch.Tensor]],
        own: list[torch.Tensor],
        totals: list[torch.Tensor],
        reduction: str,
    ) -> None:
        found = channels.channels
        sizes = [x.nbytes for x in own]
        self.arriving = [Exposed(found[i], label, sizes) for i in sorted(rows)]
        self.sent = HostMessages([Sent(found[i], label, parts) for i, parts in rows.items()])
        self.own: list[torch.Tensor] | None = own
        self.totals = totals
        self.reduction = reduction

    def wait(self) -> None:
        """Wait until the part is there, and the others have read theirs."""
        self.reduce()
        self.sent.wait()

    def is_completed(self) -> bool:
        """Whether the part is there, and the others have read theirs."""
        is_sent = self.sent.is_completed()
        return self.is_reduced() and is_sent

    def is_reduced(self) -> bool:
        """Whether the part is there; it is, as soon as that can be without waiting."""
        if self.own is not None and all(exposed.is_there() for exposed in self.arriving):
            self.reduce()
        return self.own is None

    def reduce(self) -> None:
        """Read what the others add, when it is there, and add it up, always in the same order."""
        if self.own is None:
            return
        for exposed in self.arriving:
            exposed.wait()
        for part, (own, total) in enumerate(zip(self.own, self.totals, strict=True)):
            add_pieces(self.arriving, part, own, total, self.reduction)
        for exposed in self.arriving:
            exposed.release()
        self.own, self.totals = None, []


def add_pieces(
    arriving: list[Exposed], part: int, own: torch.Tensor, total: torch.Tensor, reduction: str
) -> None:
    """Reduce a row of this process and those of others, a part of what they sent, into a third."""
    combine, wide = getattr(torch, COMBINE[reduction]), wide_dtype(own.dtype)
    size, step = total.numel(), PIECE // total.itemsize
    read = own.new_empty(min(size, step))
    for start in range(0, size, step):
        into, found = total[start : start + step], own[start : start + step]
        piece = read[: into.numel()]
        for exposed in arriving:
            exposed.read(part, piece, start * total.itemsize)
            if wide == own.dtype:
                found = combine(found, piece, out=into)
            else:
                found = combine(found.to(wide), piece.to(wide))
        if wide != own.dtype:
            into.copy_(found)


class HostAllReduce:
    """A reduction in place, on its way: each process makes a part of it, and reads the others'.

    Args:
        channels: to the others.
        kind: what messages call it.
        place: of this process.
        buffer: contiguous, in a row.
        reduction: `sum`, `max` or `min`.
    """

    def __init__(
        self, channels: HostChannels, kind: str, place: int, buffer: torch.Tensor, reduction: str
    ) -> None:
        self.channels = channels
        first, self.second = channels.reserve(kind, 2)
        size = -(-buffer.numel() // (len(channels.channels) + 1))
        cut = {i: [buffer[i * size : (i + 1) * size]] for i in (*channels.channels, place)}
        self.own, self.others = cut.pop(place), cut
        self.reduction = HostReduction(channels, first, cut, self.own, self.own, reduction)
        self.spread: HostMessages | None = None
        channels.begin(first, self)

    def wait(self) -> None:
        """Wait until all parts are there, and the others have read this one."""
        self.reduction.reduce()
        self._spread().wait()
        self.reduction.wait()

    def is_completed(self) -> bool:
        """Whether all parts are there, and the others have read this one."""
        if not self.reduction.is_reduced():
            return False
        is_sent = self.reduction.sent.is_completed()
        return self._spread().is_completed() and is_sent

    def _spread(self) -> HostMessages:
        """Begin to read the parts of the others, unless that was done."""
        if self.spread is None:
            found, label = self.channels.channels, self.second
            messages: list[Any] = [Received(found[i], label, x) for i, x in self.others.items()]
            messages += [Sent(found[i], label, self.own) for i in self.others]
            self.spread = HostMessages(messages)
            self.own, self.others = [], {}
        return self.spread


__all__: list[str] = []
