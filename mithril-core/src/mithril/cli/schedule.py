"""`mithril schedule`: a pipeline schedule as a picture, with what is idle and what is held."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.errors import OptionError, PlanError

if TYPE_CHECKING:
    from mithril.cost.timeline import Costs, Timeline
    from mithril.plan.schedule import Schedule

JSON_SCHEMA = 1


def schedule(
    which: Annotated[
        str, typer.Argument(help="gpipe, 1f1b, interleaved, zb-h1, or a CSV file with a table.")
    ],
    devices: Annotated[
        int | None, typer.Option(help="Devices of the pipeline.  [default: 4]")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(help="Micro-batches of a batch.  [default: 8]")
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(help="Stages of a device, for interleaved.  [default: 1]")
    ] = None,
    costs: Annotated[
        str | None,
        typer.Option(
            help="Time of forward, input gradient, weight gradient, transfer.  [default: 1,1,1,0]"
        ),
    ] = None,
    most_held: Annotated[
        int | None, typer.Option(help="Activations a device may hold, in micro-batches.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Print the table as CSV instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Check a pipeline schedule, and show when each device works on what."""
    from mithril.cost.timeline import simulate
    from mithril.partition.schedule import check, read_file
    from mithril.report import draw

    if which.endswith(".csv"):
        given = {"--devices": devices, "--microbatches": microbatches, "--chunks": chunks}
        _refuse(given, f"the table '{which}'")
        made = read_file(which)
    else:
        made = _make(which, _or(devices, 4), _or(microbatches, 8), _or(chunks, 1))
    if table:
        _refuse({"--costs": costs}, "--table")
        if as_json:
            raise OptionError("--json and --table print the schedule in two forms; give one")
    check(made, made.stages, made.microbatches, most_held)
    if table:
        typer.echo(str(made))
        return
    timeline = simulate(made, _costs("1,1,1,0" if costs is None else costs))
    if not math.isfinite(timeline.makespan):
        raise OptionError(f"--costs '{costs}' add up to no number; give smaller ones, as 1,1,1,0.1")
    typer.echo(_as_json(timeline) if as_json else draw(timeline))


def _make(which: str, devices: int, microbatches: int, chunks: int) -> Schedule:
    """Return the schedule of a name.

    Raises:
        PlanError: there is none, or a plugin makes one of other numbers.
    """
    from mithril.partition.schedule import make

    made = make(which, devices, microbatches, chunks)
    if (len(made.rows), made.microbatches) != (devices, microbatches):
        raise PlanError(
            f"schedule '{which}' has {len(made.rows)} devices and {made.microbatches} "
            f"micro-batches where {devices} and {microbatches} were asked for; choose another one, "
            f"or tell the plugin's author"
        )
    return made


def _as_json(timeline: Timeline) -> str:
    """Return a schedule that was run on paper: its figures, and each device's actions in order."""
    made = timeline.schedule
    rows = [
        [{"action": str(a), "start": timeline.starts[a], "end": timeline.ends[a]} for a in actions]
        for actions in made.rows
    ]
    document = {
        "schema": JSON_SCHEMA,
        "name": made.name,
        "devices": len(made.rows),
        "stages": made.stages,
        "microbatches": made.microbatches,
        "makespan": timeline.makespan,
        "bubble": timeline.bubble,
        "peaks": list(timeline.peaks),
        "rows": rows,
    }
    return json.dumps(document, indent=2)


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _refuse(given: Mapping[str, object], beside: str) -> None:
    """Raise if an option is given that has no effect beside something else.

    Raises:
        OptionError: one is.
    """
    for option, value in given.items():
        if value is not None:
            raise OptionError(f"{option} {value} has no effect beside {beside}; leave it out")


def _costs(text: str) -> Costs:
    from mithril.cost.timeline import Costs

    try:
        forward, inputs, weights, transfer = map(float, text.split(","))
    except ValueError as error:
        raise OptionError(f"--costs '{text}' is not four numbers; write 1,1,1,0.1") from error
    return Costs(forward, inputs, weights, transfer)
