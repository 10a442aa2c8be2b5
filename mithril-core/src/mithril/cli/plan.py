"""`mithril plan`: what a model would cost on hardware that is not here.

The core alone plans, for devices that nobody opens; nothing is computed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mithril.cli.mesh import read_mesh
from mithril.cli.model_file import compile_target, load_target
from mithril.errors import OptionError

if TYPE_CHECKING:
    from mithril.report.prediction import Prediction
    from mithril.runtime.backend import Backend


def plan(
    target: Annotated[
        str, typer.Argument(help="SCRIPT:NAME of a model, or of a compiled model with a plan.")
    ],
    mesh: Annotated[str, typer.Option(help="Mesh: data=64,pipeline=8,tensor=8.")] = "",
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Profile of the devices: a name, or a TOML file of your own. By default that of a "
            "compiled model, or else 'simulated'."
        ),
    ] = None,
    shapes: Annotated[
        str,
        typer.Option(
            help="Inputs of a model: x=8x16,ids=8x4:int32@data/tensor (name=sizes:dtype@axes)."
        ),
    ] = "",
    gradients: Annotated[
        bool | None,
        typer.Option("--gradients/--forward", help="With gradients, or outputs alone."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print figures and plan as JSON, for `mithril diff`.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a page to look at, which needs no network.")
    ] = None,
) -> None:
    """Show what a model costs before it runs: memory, time, collectives and their reasons."""
    from mithril.cost import as_hardware
    from mithril.report.page import render_page
    from mithril.report.prediction import predict

    profile = None if hardware is None else as_hardware(hardware)
    compiled = compile_target(
        load_target(target),
        target,
        lambda: _open_backend(mesh, hardware or "simulated"),
        shapes,
        gradients,
        {"--mesh": mesh, "--shapes": shapes, "--gradients/--forward": gradients is not None},
    )
    own = compiled.backend.hardware
    found = predict(compiled.plan, compiled.inputs, own if profile is None else profile.on(own))
    if html is not None:
        try:
            html.write_text(render_page(found, target), encoding="utf-8")
        except OSError as error:
            raise OptionError(f"--html '{html}' cannot be written; {error}") from error
    typer.echo(_as_json(found) if as_json else str(found))


def _open_backend(mesh: str, hardware: str) -> Backend:
    from mithril.mesh import Mesh
    from mithril.runtime.planned import plan_backend

    return plan_backend(Mesh(read_mesh(mesh) if mesh else None), hardware)


def _as_json(found: Prediction) -> str:
    from mithril.plan.serialize import plan_to_json

    document = json.loads(plan_to_json(found.plan))
    return json.dumps({**document, "figures": found.figures}, indent=1)
