"""`mithril calibrate`: measures what devices of this machine do, for the prices of plans to come.

A progress bar on a terminal, a line for each kind of figure elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.errors import BackendError, OptionError

if TYPE_CHECKING:
    from mithril.cost import Hardware
    from mithril.engine import Engine

SIMULATED = "numpy"


def calibrate(
    backend: Annotated[
        str, typer.Option(help="The backend.  [default: all that are ready and simulate nothing]")
    ] = "",
    mesh: Annotated[
        str, typer.Option(help="Devices at work at once, such as data=2.", show_default="one")
    ] = "data=1",
    out: Annotated[
        Path | None, typer.Option(help="Write the profile there, for hardware=, and do not use it.")
    ] = None,
) -> None:
    """Measure products, memory, kernels and collectives, and use the figures from now on."""
    from mithril.cli.mesh import read_mesh
    from mithril.cost.profiles.store import find_path, save
    from mithril.mesh import Mesh
    from mithril.plugins.opening import open_engine, ready_spec, require
    from mithril.plugins.requirements import Requirement

    axes = read_mesh(mesh)
    names = [backend] if backend else _list_backends()
    if out is not None:
        if out.suffix != ".json":
            raise OptionError(f"--out '{out}' is no JSON file; give a name that ends in .json")
        if len(names) != 1:
            raise OptionError("--out takes the profile of one backend; say which by --backend")
    for name in names:
        needs = map(Requirement.parse, ready_spec(require(name)).requires)
        packages = [need.name for need in needs if need.applies]
        engine = open_engine(name, Mesh(axes), {})
        found = _measure(engine, packages)
        path = out or find_path(name, engine.device_kind, engine.mesh.size)
        save(found, path)
        typer.echo("\n".join(_describe(found)))
        typer.echo(f"  {'written to':<18} {path}")


def _list_backends() -> list[str]:
    """Return the names of the ready backends whose devices are no simulated ones.

    Raises:
        BackendError: there is none.
    """
    from mithril.plugins.discover import Status, discover

    ready = [entry.name for entry in discover() if entry.status is Status.ready]
    names = [name for name in ready if name != SIMULATED]
    if not names:
        raise BackendError(
            "mithril calibrate found no backend with real devices; install one, such as "
            "pip install mithril-torch"
        )
    return names


def _measure(engine: Engine, packages: list[str]) -> Hardware:
    from mithril.cost.calibrate import calibrate as measure
    from mithril.cost.calibrate import count_measurements

    title = f"{engine.name} on {engine.mesh.size} x {engine.device_kind}"
    with _show_progress(title, count_measurements(engine)) as advance:
        return measure(engine, packages, advance)


@contextmanager
def _show_progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Give a function that is told of each measurement."""
    if not sys.stdout.isatty():
        typer.echo(f"{title}: {total} measurements")
        yield lambda what: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[w]}"))
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=total, w="")
        yield lambda what: progress.update(task, advance=1, w=what)


def _describe(found: Hardware) -> Iterator[str]:
    """Say what was measured, and how well it fits."""
    from mithril.cost.profiles.units import BANDWIDTH, RATE, TIME

    made = found.calibration
    assert made is not None, "it was measured"
    yield f"{made.backend} on {made.devices} x {made.device_kind} ({made.machine})"
    for dtype, points in found.rates.items():
        size, rate = max(points, key=lambda point: point[1])
        yield f"  {f'product {dtype}':<18} {RATE.write(rate)} at {size:.2g} operations"
    yield f"  {'memory':<18} {BANDWIDTH.write(found.memory_bandwidth)}"
    error = made.errors["kernels"]
    yield f"  {'kernel':<18} {TIME.write(found.kernel_seconds)}   (fit within {error:.0%})"
    for level in found.levels:
        for kind, link in level.collectives.items():
            name = f"{kind} over {level.name}"
            if name in made.errors:
                cost = f"{TIME.write(link.latency)} + bytes / {BANDWIDTH.write(link.bandwidth)}"
                yield f"  {name:<18} {cost}   (fit within {made.errors[name]:.0%})"
