"""Programs, and the parts of a plan, as text that reads like a program."""

from __future__ import annotations

from collections.abc import Sequence

from mithril.ir import Phase
from mithril.ir.printer import graph_lines
from mithril.plan.program import Collective, Port, Program, Stage, bytes_by_axis
from mithril.plan.timetable import Timetable


def print_program(program: Program) -> str:
    """Return a program as text: ports with their shardings, then the local nodes."""
    ports = [f"{port.type} {port.sharding.describe()}" for port in program.inputs]
    return "\n".join([f"program on {program.mesh!r}", *graph_lines(program.graph, ports)])


def port_lines(timetable: Timetable) -> list[str]:
    """Return what a plan takes and makes, one a line."""
    inputs, outputs = map(port_line, timetable.inputs), map(port_line, timetable.outputs)
    return ["inputs", *inputs, "outputs", *outputs]


def port_line(port: Port) -> str:
    """Return the type of an input or output, how it lies, and what each device has of it."""
    local = port.sharding.local_shape(port.type.shape)
    devices = port.sharding.mesh.devices
    where = _devices(devices) if devices else "each device"
    return f"  {port.name}: {port.type} {port.sharding.describe()}, {local} on {where}"


def stage_lines(stages: Sequence[Stage], timetable: Timetable) -> list[str]:
    """Return what the stages are and how often they run, and the schedule of a pipeline."""
    times = timetable.times()
    lines = ["stages"]
    for number, stage in enumerate(stages):
        often = f", {times[number]} times" if times[number] != 1 else ""
        where = _devices(stage.devices)
        lines.append(f"  {stage.name}: {len(stage.program.graph.nodes)} nodes on {where}{often}")
    if timetable.schedule is not None:
        lines.append(f"schedule {timetable.schedule.name}")
        lines += [f"  {row}" for row in str(timetable.schedule).splitlines()]
    return lines


def collective_lines(rows: Sequence[Collective]) -> list[str]:
    """Return collectives with their reasons, one a line, and the bytes per mesh axis."""
    lines = []
    for phase in Phase:
        found = [row for row in rows if row.phase == phase]
        if phase == Phase.update and not found:  # only a train step has one
            continue
        lines.append(f"{phase} collectives" + ("" if found else ": none"))
        lines += map(_collective, found)
    total = bytes_by_axis(rows)
    shown = ", ".join(f"{axes}: {moved}" for axes, moved in total.items()) or "none"
    return [*lines, f"bytes per device by mesh axis: {shown}"]


def times_of(row: Collective) -> str:
    """Return how often a collective runs, where that is more than once."""
    return f", {row.times} times" if row.times > 1 else ""


def consumer_of(row: Collective) -> str:
    """Return who requires what a collective makes, and whether for a second time."""
    return f"{row.cause.consumer}{', again' if row.cause.is_again else ''}"


def over(row: Collective) -> str:
    """Return the kind of a collective and the axes it runs over; a send has none."""
    return f"{row.kind} over {' x '.join(row.axes)}" if row.axes else row.kind


def by_algorithm(row: Collective) -> str:
    """Return by which algorithm a collective is carried out that this one is a step of."""
    return "" if row.cause.algorithm is None else f", by {row.cause.algorithm}"


def _devices(devices: Sequence[int]) -> str:
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"


def _collective(row: Collective) -> str:
    place = f" ({row.source})" if row.source else ""
    return (
        f"  {over(row)}{times_of(row)}: {row.cause.value}{place}, "
        f"{row.bytes} bytes, "
        f"{row.cause.produced} -> {row.cause.required} for {consumer_of(row)}{by_algorithm(row)}"
    )
