"""What ranks send one another: started early, waited for where it is used.

Every message has a tag of its own among those of one program, so none is taken for another. What is
kept here is how many went each way: after an error all ranks must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mithril_torch.program.runtime_library.exchange_layout import flatten_elements
from mithril_torch.program.runtime_library.groups import Group

SENDS = "sends"
"""The group of all ranks, over which they send."""
MESSAGES: dict[str, int] = {}


def count(which: str) -> None:
    """Count a message."""
    MESSAGES[which] = MESSAGES.get(which, 0) + 1


class PendingReceive:
    """A message on its way here; `wait` returns the tensor."""

    def __init__(self, group: Group, part: torch.Tensor, rank: int, tag: int) -> None:
        count(f"asked of {rank}")
        self.rank = rank
        self.part = part
        # A tensor that lies apart is received in one piece, and put in its place then.
        self.row = part if part.is_contiguous() else torch.empty_like(
            part, memory_format=torch.contiguous_format
        )  # fmt: skip
        self.work: Any = group.process_group.recv([flatten_elements(self.row)], rank, tag)

    def wait(self) -> torch.Tensor:
        """Wait for the data."""
        self.work.wait()
        count(f"came from {self.rank}")
        return self.part if self.row is self.part else self.part.copy_(self.row)


class PendingAssembly:
    """A tensor whose parts come from several ranks; `wait` returns it."""

    def __init__(self, whole: torch.Tensor, parts: Sequence[PendingReceive]) -> None:
        self.whole = whole
        self.parts = parts

    def wait(self) -> torch.Tensor:
        """Wait for all parts."""
        for part in self.parts:
            part.wait()
        return self.whole


def send(group: Group, x: torch.Tensor, rank: int, tag: int) -> Any:
    """Start to send a tensor; until what is returned is waited for, nobody may write into it."""
    count(f"sent to {rank}")
    return group.process_group.send([flatten_elements(x.contiguous())], rank, tag)


def receive(group: Group, like: torch.Tensor, rank: int, tag: int) -> PendingReceive:
    """Start to receive a tensor into one that nobody uses yet."""
    return PendingReceive(group, like, rank, tag)


__all__ = ["PendingAssembly", "receive", "send"]
