"""What is on its way: one can wait for it, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mithril_torch.program.runtime_library.groups import Group
from mithril_torch.program.runtime_library.host_channels import HostMessages


class Pending:
    """A collective on its way; `wait` returns what it makes, once."""

    def __init__(self, work: Any, finish: Callable[..., Any], *arguments: Any) -> None:
        self.work = work
        self.finish: Callable[..., Any] | None = finish
        self.arguments = arguments
        self.made: Any = None

    def wait(self) -> Any:
        """Wait for the data, then put it in its place."""
        self.settle()
        made, self.made = self.made, None
        return made

    def settle(self) -> None:
        """Do the same, and let go of buffers: what was sent, and what came."""
        if self.finish is None:
            return
        work, self.work = self.work, None
        if work is not None:
            work.wait()
        del work
        finish, arguments = self.finish, self.arguments
        self.finish, self.arguments = None, ()
        self.made = finish(*arguments)

    def is_settled(self) -> bool:
        """Whether there is nothing left to do; what has arrived is put in its place first."""
        if self.finish is not None and self.work is not None and self.work.is_completed():
            self.settle()
        return self.finish is None


class Messages(HostMessages):
    """Messages of Gloo that are on their way together.

    A message that nobody holds any more is not carried out, and the connection ends with it. What
    an error leaves behind is therefore kept by the group, which waits for it before the next one.
    """

    def __init__(self, group: Group, messages: list[Any]) -> None:
        super().__init__(messages)
        self.group = group

    def __del__(self) -> None:
        self.group.abandoned += self.messages


def settle_abandoned(group: Group) -> None:
    """Wait for the messages that nobody has waited for."""
    if group.host is not None:
        group.host.settle()
    while group.abandoned:
        group.abandoned[0].wait()
        del group.abandoned[0]


def settle_begun(group: Group) -> None:
    """Put in its place what has arrived of what was begun, though nobody waits for it yet."""
    group.begun = [pending for pending in group.begun if not pending.is_settled()]


__all__ = ["Messages", "Pending", "settle_abandoned", "settle_begun"]
