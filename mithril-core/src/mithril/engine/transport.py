"""What carries data between the processes of a job, and what it does instead of what it lacks.

Some libraries have few collectives, or have them only among all processes at once. Whatever is
missing is emulated from what is there; the calls that are then made are worked out here, so that a
plan is priced with what is really sent and an engine sends just that.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that is really issued.

    Args:
        kind: its kind.
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

    Every transport has all_reduce and all_gather among all processes.

    Args:
        name: of the library.
        size: how many processes there are.
        groups: whether its collectives also run among some of the processes.
        scatters: whether it has reduce_scatter.

    >>> ring = Transport("ring", 4)
    >>> print(*ring.calls("all_reduce", 1024, 2))
    all_gather among 4 devices, 4096 bytes
    """

    name: str
    size: int
    groups: bool = False
    scatters: bool = False

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
            kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `permute`.
            nbytes: counted as in `mithril.ir.Collective`.
            group: how many devices take part.
        """
        itself = Call(kind, nbytes, group)
        served = self.serves(group)
        if kind == "all_gather":
            return (itself if served else Call(kind, nbytes // group * self.size, self.size),)
        if kind in ("all_to_all", "permute"):
            among = group if served else self.size
            return (Call("all_gather", nbytes * among, among),)
        if kind == "reduce_scatter" and self.scatters and served:
            return (itself,)
        if served:
            return (Call("all_reduce", nbytes, group),)
        if self.gathers_to_reduce(group):
            return (Call("all_gather", nbytes * self.size, self.size),)
        return (Call("all_reduce", nbytes * self.size // group, self.size),)

    def emulated(self, kind: str, nbytes: int, group: int) -> str:
        """Return in words what is issued instead of a collective, if it is something else."""
        calls = self.calls(kind, nbytes, group)
        return "" if calls == (Call(kind, nbytes, group),) else ", ".join(map(str, calls))
