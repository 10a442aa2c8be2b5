"""Programs and plans as text that reads like a program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mithril.ir import Phase
from mithril.ir.printer import graph_lines
from mithril.plan.plan import Plan
from mithril.plan.program import Collective, Port, Program


def print_program(program: Program) -> str:
    """Return a program as text: ports with their shardings, then the local nodes."""
    ports = [f"{port.type} {port.sharding.describe()}" for port in program.inputs]
    return "\n".join([f"program on {program.mesh!r}", *graph_lines(program.graph, ports)])


def print_plan(plan: Plan) -> str:
    """Return a plan as text: mesh, inputs and outputs, and every collective with its cause."""
    lines = [f"plan on {plan.mesh!r}, {plan.mesh.size} devices"]
    lines += ["inputs", *map(_port, plan.inputs)]
    lines += ["outputs", *map(_port, plan.outputs)]
    lines += _stages(plan)
    lines += print_collectives(plan).splitlines()
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def print_collectives(plan: Plan) -> str:
    """Return a plan's collectives with their reasons, one a line, and the bytes per mesh axis."""
    lines = []
    for phase in Phase:
        rows = [row for row in plan.collectives() if row.phase == phase]
        lines.append(f"{phase} collectives" + ("" if rows else ": none"))
        lines += map(_collective, rows)
    total = plan.bytes_by_axis()
    shown = ", ".join(f"{axes}: {moved}" for axes, moved in total.items()) or "none"
    return "\n".join([*lines, f"bytes per device by mesh axis: {shown}"])


def print_shapes(plan: Plan, parameters: Sequence[str]) -> str:
    """Return what each device holds of the parameters of a plan, one a line, and the totals.

    Args:
        plan: a plan.
        parameters: names of the parameters.
    """
    ports = {port.name: port for port in plan.inputs}
    known = [ports[name] for name in parameters if name in ports]
    total = sum(port.type.size for port in known)
    bytes_on = Counter(dict.fromkeys(range(plan.mesh.size), 0))
    for port in known:
        local = math.prod(port.sharding.local_shape(port.type.shape))
        for device in port.sharding.mesh.flat:
            bytes_on[device] += local * port.type.dtype.itemsize
    least, most = min(bytes_on.values()), max(bytes_on.values())
    each = f"{most}" if least == most else f"{least} to {most}"
    return "\n".join(
        [
            f"{len(known)} parameters, {total} numbers, {each} bytes on each of "
            f"{plan.mesh.size} devices",
            *map(_port, known),
        ]
    )


def times_of(row: Collective) -> str:
    """Return how often a collective runs, where that is more than once."""
    return f", {row.times} times" if row.times > 1 else ""


def _port(port: Port) -> str:
    local = port.sharding.local_shape(port.type.shape)
    devices = port.sharding.mesh.devices
    where = _devices(devices) if devices else "each device"
    return f"  {port.name}: {port.type} {port.sharding.describe()}, {local} on {where}"


def _devices(devices: Sequence[int]) -> str:
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"


def over(row: Collective) -> str:
    """Return the kind of a collective and the axes it runs over; a send has none."""
    return f"{row.kind} over {' x '.join(row.axes)}" if row.axes else row.kind


def _stages(plan: Plan) -> list[str]:
    """Return what the stages are and how often they run, and the schedule of a pipeline."""
    if plan.only_stage is not None:
        return []
    times = plan.timetable.times()
    lines = ["stages"]
    for number, stage in enumerate(plan.stages):
        often = f", {times[number]} times" if times[number] != 1 else ""
        where = _devices(stage.devices)
        lines.append(f"  {stage.name}: {len(stage.program.graph.nodes)} nodes on {where}{often}")
    if plan.timetable.schedule is not None:
        lines.append(f"schedule {plan.timetable.schedule.name}")
        lines += [f"  {row}" for row in str(plan.timetable.schedule).splitlines()]
    return lines


def _collective(row: Collective) -> str:
    place = f" ({row.source})" if row.source else ""
    return (
        f"  {over(row)}{times_of(row)}: {row.cause.value}{place}, "
        f"{row.bytes} bytes, "
        f"{row.cause.produced} -> {row.cause.required} for {row.cause.consumer}"
    )
