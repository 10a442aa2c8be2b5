"""Memory: what each device holds while a plan runs, and the most it holds at once.

It is read off the plan's own programs and its timetable, by liveness (`cost.liveness`): nothing is
run, and no framework is asked. Devices that do the same are gone through once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from mithril.cost.devices import group_devices
from mithril.cost.hardware import Hardware
from mithril.cost.liveness import HOST, Holding
from mithril.cost.plan_liveness import Replay
from mithril.engine.arena import Arena
from mithril.plan import Plan
from mithril.plan.policy import MemoryPolicy
from mithril.tables import describe_devices
from mithril.units import format_bytes

PARTS = (
    "parameters", "gradients", "optimizer", "inputs", "outputs", "activations", "temporaries",
    "collectives", "arena", "host",
)  # fmt: skip
SHOWN = 10
"""How many of the things that are in memory a table names."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What some devices, which are alike, hold while a plan runs.

    Args:
        devices: their flat indices.
        peak: the most bytes each of them holds at once.
        parts: the bytes of each kind of thing at that moment: `parameters`, `gradients`,
            `optimizer`, `inputs`, `outputs`, `activations` kept for the backward, `temporaries`,
            buffers of `collectives`, and the `arena`, if memory is planned, whatever is in it.
            Beside them is `host`: the most bytes at once in the host arena, which is other memory
            and no part of the peak.
        at: the op that runs then, and its layer.
        alive: what is in memory then, largest first.
        curve: bytes after each node, in the order in which programs run; a loop is one node, and
            where the plan has several programs each is gone through as often as it runs.
        arena: the block in which most values lie at fixed offsets, with `memory_planning="greedy"`:
            its `size`, the `bound` that no offsets go below, and the `ratio` of both.
    """

    devices: tuple[int, ...]
    peak: int
    parts: Mapping[str, int]
    at: str
    alive: tuple[Holding, ...]
    curve: tuple[int, ...]
    arena: Arena | None = None

    def __str__(self) -> str:
        whose = describe_devices(self.devices)
        lines = [f"{whose}: {format_bytes(self.peak)} at most, at {self.at}"]
        here = (part for part in PARTS if part != HOST and self.parts[part])
        parts = ((part, self.parts[part]) for part in here)
        lines.append("  " + ", ".join(f"{part} {format_bytes(size)}" for part, size in parts))
        if self.arena is not None:
            size, bound = format_bytes(self.arena.size), format_bytes(self.arena.bound)
            lines.append(
                f"  arena of {size}; no offsets take less than {bound}, it is "
                f"{self.arena.ratio:.3f} times that"
            )
        if self.parts[HOST]:
            lines.append(f"  beside it {format_bytes(self.parts[HOST])} at most in the host arena")
        for holding in self.alive[:SHOWN]:
            where = f" ({holding.scope})" if holding.scope else ""
            size = format_bytes(holding.bytes)
            lines.append(f"  {size:>9}  {holding.kind:<11}  {holding.name}{where}")
        rest = self.alive[SHOWN:]
        if rest:
            size = format_bytes(sum(holding.bytes for holding in rest))
            lines.append(f"  {size:>9}  in {len(rest)} more")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """What each device holds while a plan runs.

    Args:
        rows: devices that are alike, with what they hold.
        capacity: what a device can hold, in bytes; None where that is not known.
        profile: name of the hardware profile that says so.
        policy: what the backward computes again; None where it finds all that it needs.
    """

    rows: tuple[DeviceMemory, ...]
    capacity: int | None
    profile: str
    policy: MemoryPolicy | None = None

    def keeping(self, name: str, nbytes: int) -> PlanMemory:
        """Return the same with something of an optimiser that lies on every device all the time.

        Args:
            name: what it is.
            nbytes: on a device.
        """
        if not nbytes:
            return self
        held = Holding(name, "", "optimizer", nbytes)
        rows = (
            replace(
                row,
                peak=row.peak + nbytes,
                parts={**row.parts, held.kind: row.parts[held.kind] + nbytes},
                alive=tuple(sorted((*row.alive, held), key=lambda one: -one.bytes)),
                curve=tuple(size + nbytes for size in row.curve),
            )
            for row in self.rows
        )
        return replace(self, rows=tuple(rows))

    def of(self, device: int) -> DeviceMemory:
        """Return what a device holds.

        Args:
            device: its flat index.

        Raises:
            IndexError: there is no such device.
        """
        for row in self.rows:
            if device in row.devices:
                return row
        count = sum(len(row.devices) for row in self.rows)
        raise IndexError(
            f"plan has no device {device}; it has {count}; give one of 0 to {count - 1}"
        )

    @property
    def peak(self) -> int:
        """The most bytes that any device holds at once."""
        return max((row.peak for row in self.rows), default=0)

    @property
    def fullest(self) -> DeviceMemory:
        """The devices that hold the most."""
        return max(self.rows, key=lambda row: row.peak)

    @property
    def fits(self) -> bool | None:
        """Whether every device can hold what it needs; None where that is not known."""
        return None if self.capacity is None else self.peak <= self.capacity

    def by_device(self) -> list[dict[str, int]]:
        """Return for each device a dict of bytes: `total`, and each part at the peak.

        >>> import mithril as ml
        >>> backend = ml.NumpyBackend(ml.Mesh(data=2))
        >>> compiled = ml.compile(ml.Linear(4), backend, shapes={"input": (8, 3)}, inference=True)
        >>> usage = compiled.plan.memory().by_device()
        >>> len(usage), usage[0]["parameters"], usage[0]["inputs"]
        (2, 64, 96)
        """
        found = {
            device: {"total": row.peak, **row.parts} for row in self.rows for device in row.devices
        }
        return [dict(found[device]) for device in sorted(found)]

    def __str__(self) -> str:
        if self.capacity is None:
            room = f"of devices of profile '{self.profile}' it is not known what they can hold"
        else:
            state = "fits into" if self.fits else "does not fit into"
            room = f"{state} {format_bytes(self.capacity)} of a device of profile '{self.profile}'"
        head = f"memory: {format_bytes(self.peak)} on a device; {room}"
        policy = [] if self.policy is None else self.policy.lines()
        return "\n".join([head, *map(str, self.rows), *policy])


def predict_memory(plan: Plan, hardware: Hardware, donated: Collection[str] = ()) -> PlanMemory:
    """Return what each device holds while a plan runs.

    Args:
        plan: what runs.
        hardware: how programs run, and what a device can hold.
        donated: names of inputs that are given up, in whose memory results may be made.

    >>> import mithril as ml
    >>> from mithril.cost import SIMULATED, predict_memory
    >>> layer = ml.Linear(4, bias=False)
    >>> compiled = ml.compile(layer, ml.NumpyBackend(), shapes={"input": (8, 3)}, inference=True)
    >>> print(predict_memory(compiled.plan, SIMULATED))  # doctest: +NORMALIZE_WHITESPACE
    memory: 272 B on a device; of devices of profile 'simulated' it is not known what they can hold
    device 0: 272 B at most, at einsum in linear
      parameters 48 B, inputs 96 B, outputs 128 B
        128 B  outputs      output (linear)
         96 B  inputs       input
         48 B  parameters   weight
    """
    replay = Replay(plan, hardware.execution, frozenset(donated))
    rows = []
    for devices in group_devices(plan):
        found = replay.run(devices[0])
        alive = sorted(found.alive, key=lambda holding: -holding.bytes)
        sizes = Counter(dict.fromkeys(PARTS, 0))
        for holding in alive:
            sizes[holding.kind] += holding.bytes
        sizes[HOST] = found.host
        at, curve = found.at, tuple(found.curve)
        arena = found.arena if found.arena.size else None
        rows.append(DeviceMemory(devices, found.peak, dict(sizes), at, tuple(alive), curve, arena))
    return PlanMemory(tuple(rows), hardware.memory_bytes, hardware.name, plan.policy)
