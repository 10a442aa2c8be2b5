"""Simulates the timetable of a plan on rows of equal devices.

Devices that run the same stages are equal, and one of them stands for all. The steps of the
timetable are gone through in their order. A run starts when the device has done the one before and
its operands are there; a stage that communicates starts on all of its devices at once. A transfer
starts when the value is made and neither side sends or receives anything else; it goes on beside
what either computes. Where the devices of a process compute in turn, all steps of all devices come
one after the other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mithril.cost.communication import transfer_seconds
from mithril.cost.events import TRANSFER, Event, Occurrence
from mithril.cost.hardware import Hardware
from mithril.cost.kernels import OpCosts
from mithril.cost.streams import (
    Link,
    Path,
    Totals,
    price_program,
    simulate_program,
)
from mithril.ops.collective import SEND
from mithril.plan import Plan
from mithril.plan.timetable import Run, Send, Transfer

Arrival = tuple[float, Link]
"""When something is done, and what it was."""
CALL = "call"


@dataclass(eq=False)
class Row:
    """Equal devices, and what one of them has done.

    Args:
        devices: flat indices.
        now: when it has done its work so far.
        link: the last of it.
        transfers: from when to when it sends or receives something, in order.
        totals: sums over what it does.
        occurrences: what it does.
    """

    devices: tuple[int, ...]
    now: float
    link: Link
    transfers: list[tuple[float, float]] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    occurrences: list[Occurrence] = field(default_factory=list)

    def wait(self, until: float) -> None:
        """Let time go on; what is sent in the meantime is exposed."""
        if until <= self.now:
            return
        first = bisect_left(self.transfers, self.now, key=lambda one: one[1])
        for start, end in self.transfers[first:]:
            if start >= until:
                break
            exposed = min(end, until) - max(start, self.now)
            self.totals.exposed[SEND] += exposed  # type: ignore[assignment]
        self.now = until

    def find_room(self, start: float, seconds: float) -> float:
        """Return from when on nothing else is sent for so long, at the earliest from `start`."""
        first = bisect_left(self.transfers, start, key=lambda one: one[1])
        for begun, ended in self.transfers[first:]:
            if begun - start >= seconds:
                break
            start = max(start, ended)
        return start


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedPlan:
    """A plan that was simulated.

    Args:
        rows: of equal devices.
        seconds: of the whole step.
        path: what followed on what from its start to its end.
        layers: seconds of compute by layer path, on a device that has the layer.
    """

    rows: tuple[Row, ...]
    seconds: float
    path: Path
    layers: Mapping[str, float]


def simulate_plan(plan: Plan, hardware: Hardware, costs: OpCosts) -> SimulatedPlan:
    """Return when the devices of a plan do what.

    Args:
        plan: what runs.
        hardware: the profile to price with.
        costs: what is known of the costs of ops.
    """
    simulation = _PlanSimulation(plan, hardware, costs)
    for step in plan.timetable.steps:
        if isinstance(step, Run):
            simulation.run(step)
        else:
            simulation.send(step)
    return simulation.finish()


class _PlanSimulation:
    def __init__(self, plan: Plan, hardware: Hardware, costs: OpCosts) -> None:
        self._plan, self._hardware = plan, hardware
        self._in_turn = hardware.execution.in_turn
        self._begin: Arrival = hardware.call_seconds, Link([(CALL, hardware.call_seconds)])
        self._rows = tuple(Row(devices, *self._begin) for devices in list_rows(plan))
        self._row_of = {device: row for row in self._rows for device in row.devices}
        self._of_stage = [
            tuple({id(row): row for row in map(self._row_of.__getitem__, stage.devices)}.values())
            for stage in plan.stages
        ]
        self._simulated = [
            simulate_program(price_program(stage.program, hardware, costs)) for stage in plan.stages
        ]
        self._there: dict[int, Arrival] = {}
        self._transfer_seconds: dict[int, float] = {}
        self._layers = Totals()

    def run(self, step: Run) -> None:
        """Run a stage."""
        done, rows = self._simulated[step.stage], self._of_stage[step.stage]
        operands = [self._there[slot] for slot in step.inputs if slot in self._there]
        microbatch = None if step.action is None else step.action.microbatch
        started = [(row.now, row.link) for row in (self._rows if self._in_turn else rows)]
        ends = []
        for row in rows:
            own = started if self._in_turn or done.communicates else [(row.now, row.link)]
            start, link = _last([*own, *operands])
            row.wait(start)
            row.now, row.link = start + done.seconds, Link(done.path, link)
            row.totals.add(done.totals)
            row.occurrences.append(Occurrence(done.items, start, microbatch))
            ends.append((row.now, row.link))
        self._layers.add(done.totals)
        self._there.update(dict.fromkeys(step.outputs, _last(ends)))

    def send(self, step: Send) -> None:
        """Send a value from the devices of a stage to those of another."""
        transfer = self._plan.timetable.transfers[step.transfer]
        made = self._there.get(step.source, self._begin)
        rows = {id(row): row for row in map(self._row_of.__getitem__, transfer.devices)}.values()
        self._there[step.target] = made
        if not rows:
            return
        seconds = self._find_seconds(step.transfer, transfer)
        others = [(row.now, row.link) for row in self._rows] if self._in_turn else []
        ready, before = _last([made, *others])
        start = _find_room(list(rows), ready, seconds)
        end = start + seconds
        link = Link([(SEND, end - ready)], before)
        microbatch = None if step.action is None else step.action.microbatch
        event = _make_event(transfer, seconds)
        for row in rows:
            insort(row.transfers, (start, end))
            row.totals.communication[SEND] += seconds  # type: ignore[assignment]
            row.occurrences.append(Occurrence([event], start, microbatch))
            if self._in_turn:
                row.wait(end)
                row.link = link
        self._there[step.target] = end, link

    def finish(self) -> SimulatedPlan:
        """Wait for everything."""
        ends = [(row.now, row.link) for row in self._rows]
        seconds, link = _last([*ends, *self._there.values()])
        for row in self._rows:
            row.wait(seconds)
            row.occurrences.sort(key=lambda occurrence: occurrence.start)
        return SimulatedPlan(self._rows, seconds, link.trace(), self._layers.layers)

    def _find_seconds(self, number: int, transfer: Transfer) -> float:
        if number not in self._transfer_seconds:
            self._transfer_seconds[number] = transfer_seconds(transfer, self._hardware)
        return self._transfer_seconds[number]


def list_rows(plan: Plan) -> list[tuple[int, ...]]:
    """Return the devices of a plan, together those that run the same stages."""
    stages: dict[int, list[int]] = {device: [] for device in range(plan.mesh.size)}
    for number, stage in enumerate(plan.stages):
        for device in stage.devices:
            stages[device].append(number)
    rows: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for device, numbers in stages.items():
        rows[tuple(numbers)].append(device)
    return [tuple(devices) for devices in rows.values()]


def _find_room(rows: Sequence[Row], start: float, seconds: float) -> float:
    """Return from when on none of some devices sends anything for so long."""
    later = max(row.find_room(start, seconds) for row in rows)
    return start if later == start else _find_room(rows, later, seconds)


def _last(arrivals: Sequence[Arrival]) -> Arrival:
    return max(arrivals, key=lambda arrival: arrival[0])


def _make_event(transfer: Transfer, seconds: float) -> Event:
    return Event(
        f"{SEND} {transfer.cause.value}", transfer.scope, transfer.phase, TRANSFER, 0.0, seconds,
        SEND, (), transfer.bytes,
    )  # fmt: skip
