"""Parts of a plan as small tables: what it takes and makes, its stages, what it sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mithril.plan.program import Collective, Port, Stage
from mithril.plan.timetable import Timetable
from mithril.tables import Table, describe_devices, shorten


def tabulate_parts(
    stages: Sequence[Stage], timetable: Timetable, collectives: Sequence[Collective]
) -> Iterator[Table]:
    """Yield the tables of a plan, those that have rows.

    Args:
        stages: of the plan.
        timetable: of the plan.
        collectives: of all stages, and what is sent between them.
    """
    yield tabulate_ports("inputs", timetable.inputs)
    yield tabulate_ports("outputs", timetable.outputs)
    if len(stages) > 1:
        yield _tabulate_stages(stages, timetable)
    yield tabulate_collectives(collectives)


def tabulate_ports(title: str, ports: Sequence[Port]) -> Table:
    """Return names, types and shardings of what goes into a plan or comes out of it."""
    rows = [
        (
            port.name,
            str(port.type),
            port.sharding.describe(),
            str(port.sharding.local_shape(port.type.shape)),
            describe_devices(port.sharding.mesh.flat),
        )
        for port in ports
    ]
    heads = ("name", "type", "sharding", "each device holds", "where")
    return Table(f"{title}: {len(rows)}", heads, shorten(rows))


def _tabulate_stages(stages: Sequence[Stage], timetable: Timetable) -> Table:
    times = timetable.times()
    rows = [
        (
            stage.name,
            str(len(stage.program.graph.nodes)),
            describe_devices(stage.devices),
            str(times[number]),
        )
        for number, stage in enumerate(stages)
    ]
    schedule = timetable.schedule
    notes = () if schedule is None else (f"schedule {schedule.name}",)
    heads = ("stage", "nodes", "where", "runs")
    return Table(f"stages: {len(rows)}", heads, shorten(rows), notes=notes)


def tabulate_collectives(collectives: Iterable[Collective]) -> Table:
    """Return how often each kind of collective runs over which axes, and what a device moves."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in collectives:
        key = str(row.phase), row.kind, " x ".join(row.axes)
        count, moved = found.get(key, (0, 0))
        found[key] = count + row.times, moved + row.times * row.bytes
    rows = [(*key, str(count), str(moved)) for key, (count, moved) in found.items()]
    heads = ("phase", "collective", "over", "times", "bytes of a device")
    return Table("collectives" if rows else "no collectives", heads if rows else (), shorten(rows))
