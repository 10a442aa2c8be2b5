"""`mithril demo`: train a small GPT, split over a simulated mesh, and show every collective.

Ends with the proof: the first steps on one device give the same losses.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.cli.mesh import read_mesh
from mithril.cli.options import Given, find_spec, read_options
from mithril.errors import OptionError, listing, nearest

if TYPE_CHECKING:
    from mithril.cli.gpt import Trainer

AXES = ("data", "tensor")
PROOF_STEPS = 3
FIRST = 3
"""Steps of which each is told of, so that a slow library shows that it is at work."""
TOLERANCE = 1e-4
SAMPLE = 160
PROMPT = "The "


def demo(
    mesh: Annotated[
        str, typer.Option(help="Mesh axes `data` and `tensor` and their sizes.")
    ] = "data=2,tensor=2",
    backend: Annotated[
        str, typer.Option(help="Backend name; see `mithril backends list`.")
    ] = "numpy",
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 400,
    option: Given = None,
) -> None:
    """Train a small character GPT on Python's own help texts."""
    # Small matrices gain nothing from BLAS threads, and lose much when other programs are running.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import mithril as ml
    from mithril.cli.gpt import Sizes, Trainer, help_text

    devices = read_mesh(mesh)
    _check_axes(devices)
    options = read_options(option, find_spec(backend))
    text, sizes = help_text(), Sizes()
    opened = ml.open_backend(backend, ml.Mesh(devices), **options)
    typer.echo(
        f"text     {len(text.ids)} characters, alphabet of {len(text.alphabet)}\n"
        f"model    GPT, {sizes.layers} blocks, width {sizes.width}, {sizes.heads} heads\n"
        f"devices  {ml.Mesh(devices)!r} on backend '{backend}'"
    )
    typer.echo("planning and compiling; each new shape may take a library some time")
    trainer = Trainer(text, sizes, opened)
    typer.echo(f"\n{trainer.compiled.plan_summary()}\n")
    typer.echo(f"writing {SAMPLE} characters before training")
    before = trainer.write(PROMPT, SAMPLE)
    typer.echo("training; the first step compiles")
    start = time.perf_counter()
    losses = list(_show(trainer, steps))
    seconds = time.perf_counter() - start
    typer.echo(
        f"trained {steps} steps in {seconds:.1f} s: loss {losses[0]:.3f} -> {losses[-1]:.3f}"
    )
    _show_text("before", before)
    _show_text("after", trainer.write(PROMPT, SAMPLE))
    _prove(losses, Trainer(text, sizes, ml.open_backend(backend, **options)))


def _check_axes(names: Iterable[str]) -> None:
    """Raise unless the demo's model has a use for every axis.

    Raises:
        OptionError: it has none for one.
    """
    for name in names:
        if name not in AXES:
            raise OptionError(
                f"--mesh axis '{name}' is none of the demo's{nearest(name, AXES)}; axes: "
                f"{listing(AXES)}"
            )


def _show(trainer: Trainer, steps: int) -> Iterable[float]:
    """Yield the losses of the steps, with a progress bar on a terminal and lines elsewhere."""
    if not sys.stdout.isatty():
        for step in range(steps):
            loss = trainer.step()
            if step < FIRST or step % max(steps // 10, 1) == 0 or step == steps - 1:
                typer.echo(f"step {step + 1:4d}  loss {loss:.3f}")
            yield loss
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("training", total=steps, loss="")
        for _ in range(steps):
            loss = trainer.step()
            progress.update(task, advance=1, loss=f"loss {loss:.3f}")
            yield loss


def _show_text(title: str, text: str) -> None:
    typer.echo(f"\n--- text written {title} training\n{text}")


def _prove(losses: list[float], single: Trainer) -> None:
    """Train the first steps again on one device and compare the losses."""
    count = min(PROOF_STEPS, len(losses))
    expected = [single.step() for _ in range(count)]
    worst = max(abs(a - b) for a, b in zip(losses, expected, strict=False))
    typer.echo("\n--- the same steps on one device")
    for step, (sharded, whole) in enumerate(zip(losses, expected, strict=False), start=1):
        typer.echo(f"step {step}  mesh {sharded:.6f}  one device {whole:.6f}")
    if worst > TOLERANCE:
        typer.echo(f"losses differ by {worst:.2e}, more than {TOLERANCE}", err=True)
        raise typer.Exit(1)
    typer.echo(f"equal within {worst:.1e}")
