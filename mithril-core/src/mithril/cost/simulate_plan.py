"""Simulates the timetable of a plan on rows of equal devices.

Devices that run the same stages are equal, and one of them stands for all. The steps of the
timetable are gone through in their order. A run starts when the device has done the one before and
its operands are there; a stage that communicates starts on all of its devices at once. A transfer
starts when the value is made, and the one side sends nothing else and the other receives nothing
else; it goes on beside what either computes. Where the devices of a process compute in turn, all
steps of all devices come one after the other.

Runs take as long as they do while all devices of a processor are at work. Where a device uses what
others leave (`Execution.largest_part`), a run is as much shorter as it has more of the processor on
average; as that depends on when the others run, the plan is simulated again until it holds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mithril.cost.communication import transfer_seconds
from mithril.cost.events import RECEIVED, SENT, Event, Occurrence
from mithril.cost.hardware import Hardware
from mithril.cost.kernels import OpCosts
from mithril.cost.streams import (
    Link,
    Path,
    Simulated,
    Totals,
    price_program,
    simulate_program,
)
from mithril.ops.collective import SEND
from mithril.plan import Plan
from mithril.plan.timetable import Run, Send, Transfer

Arrival = tuple[float, Link]
"""When something is done, and what it was."""
Span = tuple[float, float, int]
"""From when to when how many devices work."""
CALL = "call"
ROUNDS = 8
"""So often a plan is simulated again."""


class Line:
    """One way of the links of a device: what goes over it, one after the other."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float]] = []  # from when to when, in order

    def find_room(self, start: float, seconds: float) -> float:
        """Return from when on it is free for so long, at the earliest from `start`."""
        for begun, ended in self.list_after(start):
            if begun - start >= seconds:
                break
            start = max(start, ended)
        return start

    def take(self, start: float, end: float) -> None:
        """Send something from when to when."""
        insort(self._taken, (start, end))

    def list_after(self, start: float) -> list[tuple[float, float]]:
        """Return what ends later than that."""
        return self._taken[bisect_right(self._taken, start, key=lambda one: one[1]) :]


@dataclass(eq=False)
class Row:
    """Equal devices, and what one of them has done.

    Args:
        devices: flat indices.
        now: when it has done its work so far.
        link: the last of it.
        lines: those it sends over and receives over, by stream.
        totals: sums over what it does.
        occurrences: what it does.
    """

    devices: tuple[int, ...]
    now: float
    link: Link
    lines: Mapping[str, Line] = field(default_factory=lambda: {SENT: Line(), RECEIVED: Line()})
    totals: Totals = field(default_factory=Totals)
    occurrences: list[Occurrence] = field(default_factory=list)

    def wait(self, until: float) -> None:
        """Let time go on; what is sent or received in the meantime is exposed."""
        taken = [one for line in self.lines.values() for one in line.list_after(self.now)]
        for start, end in sorted(taken):
            exposed = min(end, until) - max(start, self.now)
            if exposed > 0:
                self.totals.exposed[SEND] += exposed
                self.now = min(end, until)
        self.now = max(self.now, until)


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
    programs = _simulate_stages(plan, hardware, costs)
    execution, scales = hardware.execution, [1.0] * len(plan.timetable.steps)
    simulation = _PlanSimulation(plan, hardware, programs, scales)
    simulated = simulation.go_through()
    if execution.largest_part > 1 and len(plan.stages) > 1 and not execution.in_turn:
        parts = _find_parts(plan, hardware, costs, programs)
        for _ in range(ROUNDS):
            speeds = find_speeds(simulation.spans, parts)
            # Halfway, as what is shorter overlaps less, which makes it longer.
            scales = [(scale + 1 / v) / 2 for scale, v in zip(scales, speeds, strict=True)]
            simulation = _PlanSimulation(plan, hardware, programs, scales)
            simulated = simulation.go_through()
    return simulated


def find_speeds(spans: Sequence[Span], parts: Sequence[float]) -> list[float]:
    """Return for each span how many times as fast it is on average as while all devices work.

    Args:
        spans: from when to when how many devices work.
        parts: how many times as fast devices are while one of them works, two, and so on.

    >>> find_speeds([(0.0, 2.0, 1), (1.0, 2.0, 1)], [2.0, 1.0])
    [1.5, 1.0]
    """
    changes = sorted(
        change for start, end, count in spans for change in ((start, count), (end, -count))
    )
    times, sums, working = [0.0], [0.0], 0  # the integral over time of how fast devices are
    for time, count in changes:
        part = parts[min(max(working, 1), len(parts)) - 1]
        sums.append(sums[-1] + part * (time - times[-1]))
        times.append(time)
        working += count

    def integrate(until: float) -> float:
        return sums[bisect_left(times, until)]

    return [
        (integrate(end) - integrate(start)) / (end - start) if end > start else 1.0
        for start, end, _ in spans
    ]


def _find_parts(
    plan: Plan, hardware: Hardware, costs: OpCosts, programs: Sequence[Simulated]
) -> list[float]:
    """Return how many times as fast devices are while one of them works, two, and so on.

    That is what was measured with so many, and otherwise what their even part of the processor is.
    """
    execution, measured = hardware.execution, {count for count, _ in hardware.shared}
    total = sum(done.seconds for done in programs)
    parts = []
    for working in range(1, execution.devices_per_processor + 1):
        even = min(execution.devices_per_processor / working, execution.largest_part)
        if working in measured and working < execution.devices_per_processor:
            alone = _simulate_stages(plan, hardware.serving(working), costs)
            even = total / sum(done.seconds for done in alone)
        parts.append(even)
    return parts


def _simulate_stages(plan: Plan, hardware: Hardware, costs: OpCosts) -> list[Simulated]:
    return [
        simulate_program(price_program(stage.program, hardware, costs)) for stage in plan.stages
    ]


class _PlanSimulation:
    def __init__(
        self,
        plan: Plan,
        hardware: Hardware,
        programs: Sequence[Simulated],
        scales: Sequence[float],
    ) -> None:
        self._plan, self._hardware = plan, hardware
        self._simulated, self._scales = programs, scales
        self.spans: list[Span] = []
        self._in_turn = hardware.execution.in_turn
        self._begin: Arrival = hardware.call_seconds, Link([(CALL, hardware.call_seconds)])
        self._rows = tuple(Row(devices, *self._begin) for devices in list_rows(plan))
        self._row_of = {device: row for row in self._rows for device in row.devices}
        self._of_stage = [
            tuple({id(row): row for row in map(self._row_of.__getitem__, stage.devices)}.values())
            for stage in plan.stages
        ]
        self._there: dict[int, Arrival] = {}
        self._lines: dict[int, Sequence[tuple[Row, str]]] = {}
        self._transfer_seconds: dict[int, float] = {}
        self._layers = Totals()

    def go_through(self) -> SimulatedPlan:
        """Go through the timetable."""
        for step, scale in zip(self._plan.timetable.steps, self._scales, strict=True):
            if isinstance(step, Run):
                self.run(step, scale)
            else:
                self.send(step)
                self.spans.append((0.0, 0.0, 0))
        return self.finish()

    def run(self, step: Run, scale: float) -> None:
        """Run a stage, `scale` times as long as while all devices are at work."""
        done, rows = self._simulated[step.stage], self._of_stage[step.stage]
        operands = [self._there[slot] for slot in step.inputs if slot in self._there]
        microbatch = None if step.action is None else step.action.microbatch
        started = [(row.now, row.link) for row in (self._rows if self._in_turn else rows)]
        ends = []
        for row in rows:
            own = started if self._in_turn or done.communicates else [(row.now, row.link)]
            start, link = _last([*own, *operands])
            row.wait(start)
            path = [(name, seconds * scale) for name, seconds in done.path]
            row.now, row.link = start + done.seconds * scale, Link(path, link)
            row.totals.add(done.totals, scale)
            row.occurrences.append(Occurrence(done.items, start, microbatch, scale))
            ends.append((row.now, row.link))
        end, devices = _last(ends)[0], len(self._plan.stages[step.stage].devices)
        self.spans.append((end - done.seconds * scale, end, devices))
        self._layers.add(done.totals, scale)
        self._there.update(dict.fromkeys(step.outputs, _last(ends)))

    def send(self, step: Send) -> None:
        """Send a value from the devices of a stage to those of another."""
        transfer = self._plan.timetable.transfers[step.transfer]
        made = self._there.get(step.source, self._begin)
        lines = self._find_lines(step.transfer, transfer)
        if not lines:
            self._there[step.target] = made
            return
        seconds = self._transfer_seconds[step.transfer]
        others = [(row.now, row.link) for row in self._rows] if self._in_turn else []
        ready, before = _last([made, *others])
        start = _find_room([row.lines[stream] for row, stream in lines], ready, seconds)
        end = start + seconds
        self._there[step.target] = end, Link([(SEND, end - ready)], before)
        microbatch = None if step.action is None else step.action.microbatch
        for row, stream in lines:
            row.lines[stream].take(start, end)
            row.totals.communication[SEND] += seconds
            event = _make_event(transfer, seconds, stream)
            row.occurrences.append(Occurrence([event], start, microbatch))
            if self._in_turn:
                row.wait(end)
                row.link = self._there[step.target][1]

    def finish(self) -> SimulatedPlan:
        """Wait for everything."""
        ends = [(row.now, row.link) for row in self._rows]
        seconds, link = _last([*ends, *self._there.values()])
        for row in self._rows:
            row.wait(seconds)
            row.occurrences.sort(key=lambda occurrence: occurrence.start)
        return SimulatedPlan(self._rows, seconds, link.trace(), self._layers.layers)

    def _find_lines(self, number: int, transfer: Transfer) -> Sequence[tuple[Row, str]]:
        """Return over which lines a transfer goes."""
        if number not in self._lines:
            crossing = [chunk for chunk in transfer.chunks if chunk.sender != chunk.receiver]
            ends = {(chunk.sender, SENT) for chunk in crossing}
            ends |= {(chunk.receiver, RECEIVED) for chunk in crossing}
            lines = {(self._row_of[device], stream) for device, stream in ends}
            self._lines[number] = sorted(lines, key=lambda one: (one[0].devices, one[1]))
            self._transfer_seconds[number] = transfer_seconds(transfer, self._hardware)
        return self._lines[number]


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


def _find_room(lines: Sequence[Line], start: float, seconds: float) -> float:
    """Return from when on all of some lines are free for so long."""
    later = max(line.find_room(start, seconds) for line in lines)
    return start if later == start else _find_room(lines, later, seconds)


def _last(arrivals: Sequence[Arrival]) -> Arrival:
    return max(arrivals, key=lambda arrival: arrival[0])


def _make_event(transfer: Transfer, seconds: float, stream: str) -> Event:
    return Event(
        f"{SEND} {transfer.cause.value}", transfer.scope, transfer.phase, stream, 0.0, seconds,
        SEND, (), transfer.bytes,
    )  # fmt: skip
