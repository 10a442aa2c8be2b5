"""What carries data between the processes of a job, and what it does instead of what it lacks.

Some libraries have few collectives, or have them only among all processes at once; in some a
process can send to its neighbours only. Whatever is missing is emulated from what is there; the
calls that are then made are worked out here, so that a plan is priced with what is really sent and
an engine sends just that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from mithril.ops.collective import SEND, AllGather, AllReduce, class_of


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that is really issued.

    Args:
        kind: its kind; `send` for a message from one process to another.
        bytes: counted as in `mithril.ir.Collective`.
        group: how many devices take part.
    """

    kind: str
    bytes: int
    group: int

    def __str__(self) -> str:
        return f"{self.kind} among {self.group} devices, {self.bytes} bytes"


@dataclass(frozen=True, slots=True)
class Transport:
    """The abilities of what carries data between processes.

    Every transport has the collectives without `fallbacks` among all processes, and messages
    between neighbours: process i and process i + 1, the last and the first.

    Args:
        name: of the library.
        size: how many processes there are.
        groups: whether its collectives also run among some of the processes.
        more: kinds of collectives that it has besides.
        reaches_all: whether a process can send to every other one.
        part: the processes that a part of the mesh consists of; empty for all.

    >>> ring = Transport("ring", 4)
    >>> print(*ring.calls("all_reduce", 1024, 2))
    all_gather among 4 devices, 4096 bytes
    """

    name: str
    size: int
    groups: bool = False
    more: frozenset[str] = frozenset()
    reaches_all: bool = False
    part: tuple[int, ...] = ()

    def within(self, part: tuple[int, ...]) -> Transport:
        """Return the transport as the processes of a part have it: others do not take part."""
        return self if len(part) == self.size else replace(self, part=part)

    @property
    def by_messages(self) -> bool:
        """Whether collectives are made of messages: what all processes do is not for a part."""
        return bool(self.part) and not self.groups

    def route(self, sender: int, receiver: int) -> tuple[tuple[int, int], ...]:
        """Return the messages that bring something from a process to another, one after another.

        >>> Transport("ring", 4).route(0, 2)
        ((0, 1), (1, 2))
        """
        ahead = (receiver - sender) % self.size
        step = 1 if ahead <= self.size - ahead else -1
        if self.reaches_all or ahead in (0, 1, self.size - 1):
            return ((sender, receiver),)
        stops = [(sender + step * i) % self.size for i in range(min(ahead, self.size - ahead) + 1)]
        return tuple(pairwise(stops))

    def has(self, kind: str) -> bool:
        """Whether there is such a collective, among all processes at least."""
        return kind in self.more or not class_of(kind).fallbacks

    def serves(self, group: int) -> bool:
        """Whether collectives run among a group of this size and no others."""
        return self.groups or group == self.size

    def gathers_to_reduce(self, group: int) -> bool:
        """Whether an all_reduce of some processes gathers the values of all.

        Otherwise every group has a slot of its own in an all_reduce of all processes. That moves
        2 (n - 1) / k times the bytes of a value, and gathering n - 1 times.
        """
        return group <= 2

    def calls(self, kind: str, nbytes: int, group: int) -> tuple[Call, ...]:
        """Return what is issued for a collective: itself, if the transport has it.

        Args:
            kind: of the collective.
            nbytes: counted as in `mithril.ir.Collective`.
            group: how many devices take part.
        """
        issued = class_of(kind)
        held = issued.to_held_bytes(nbytes, group)
        if self.by_messages:
            return self._messages(held, group)
        if self.has(kind) and self.serves(group):
            return (Call(kind, nbytes, group),)
        if issued.fallbacks:
            instead = next(kind for kind in issued.fallbacks if self.has(kind.name))
            return self.calls(instead.name, instead.to_counted_bytes(held, group), group)
        if issued.reduces and not self.gathers_to_reduce(group):
            return (Call(AllReduce.name, held * self.size // group, self.size),)
        return (Call(AllGather.name, held * self.size, self.size),)

    def _messages(self, nbytes: int, group: int) -> tuple[Call, ...]:
        """Return what is sent where everyone of a group sends to every other one of it.

        Not knowing which processes the group is, this takes the longest way inside the part.
        """
        longest = max(len(self.route(a, b)) for a in self.part for b in self.part)
        return (Call(SEND, nbytes, 2),) * ((group - 1) * longest)

    def describe_emulation(self, kind: str, nbytes: int, group: int) -> str:
        """Return in words what is issued instead of a collective, if it is something else."""
        calls = self.calls(kind, nbytes, group)
        if calls == (Call(kind, nbytes, group),):
            return ""
        runs = ((call, len(list(same))) for call, same in groupby(calls))
        return ", ".join(f"{n} times {call}" if n > 1 else str(call) for call, n in runs)
