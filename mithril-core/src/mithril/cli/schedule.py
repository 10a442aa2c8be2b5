"""`mithril schedule`: a pipeline schedule as a picture, with what is idle and what is held."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.errors import OptionError

if TYPE_CHECKING:
    from mithril.partition.schedule import Costs


def schedule(
    which: Annotated[
        str, typer.Argument(help="gpipe, 1f1b, interleaved, zb-h1, or a CSV file with a table.")
    ],
    devices: Annotated[int, typer.Option(help="Devices of the pipeline.")] = 4,
    microbatches: Annotated[int, typer.Option(help="Micro-batches of a batch.")] = 8,
    chunks: Annotated[int, typer.Option(help="Stages of a device, for interleaved.")] = 1,
    costs: Annotated[
        str,
        typer.Option(help="Time of forward, input gradient, weight gradient, transfer."),
    ] = "1,1,1,0",
    most_held: Annotated[
        int | None, typer.Option(help="Activations a device may hold, in micro-batches.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Print the table as CSV instead.")] = False,
) -> None:
    """Check a pipeline schedule, and show when each device works on what."""
    from mithril.ir.schedule import read_table
    from mithril.partition.schedule import check, make, simulate

    if which.endswith(".csv"):
        made = read_table(Path(which).stem, _lines(which))
    else:
        made = make(which, devices, microbatches, chunks)
    check(made, made.stages, made.microbatches, most_held)
    typer.echo(str(made) if table else str(simulate(made, _costs(costs))))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise OptionError(f"schedule file '{path}' cannot be read; {error.strerror}") from error


def _costs(text: str) -> Costs:
    from mithril.partition.schedule import Costs

    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 4 or any(not 0 <= x < float("inf") for x in numbers) or not any(numbers[:3]):
        raise OptionError(
            f"--costs '{text}' is not four times of at least 0; write them like 1,1,1,0.1"
        )
    return Costs(*numbers)
