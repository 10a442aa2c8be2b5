"""`mithril eject`: write the program of a model to a file that runs without Mithril.

Only backends that write such files can do it; none of the mesh's devices is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mithril.cli.choice import choose_spec
from mithril.cli.mesh import read_mesh
from mithril.cli.model_file import compile_target, load_target
from mithril.errors import BackendError, OptionError

if TYPE_CHECKING:
    from mithril.plugins.spec import BackendSpec
    from mithril.runtime.backend import Backend


def eject(
    target: Annotated[
        str, typer.Argument(help="SCRIPT:NAME of a model, or of a compiled model with a plan.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    backend: Annotated[
        str, typer.Option(help="Backend name; by default the one that writes files.")
    ] = "",
    mesh: Annotated[str, typer.Option(help="Mesh of a model: data=2,tensor=2.")] = "",
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
) -> None:
    """Write the program of a model as a file that needs only the backend's framework."""
    from mithril.plugins.published import PUBLISHED, install_command

    spec = choose_spec(
        backend,
        lambda spec: spec.planning is not None,
        need="mithril eject needs one ready backend that writes files",
        lack="writes no files that run without Mithril",
        remedy=install_command(package for package in PUBLISHED.values() if package.plans),
    )
    found = load_target(target)
    compiled = compile_target(
        found,
        target,
        lambda: _open_backend(spec, mesh),
        shapes,
        gradients,
        {"--mesh": mesh, "--shapes": shapes},
    )
    _check_backend(compiled, spec, asked=bool(backend))
    typer.echo(f"wrote {compiled.eject(output, gradients=gradients)}")


def _open_backend(spec: BackendSpec, mesh: str) -> Backend:
    import mithril as ml

    options: dict[str, Any] = dict(spec.planning or {})
    return ml.open_backend(spec.name, ml.Mesh(read_mesh(mesh) if mesh else None), **options)


def _check_backend(compiled: Any, spec: BackendSpec, *, asked: bool) -> None:
    backend = compiled.backend
    if asked and backend.name != spec.name:
        raise OptionError(
            f"--backend {spec.name} is not the one of the compiled model, '{backend.name}'; leave "
            f"it out, or name a model that is not compiled"
        )
    if "eject" not in backend.interop.model_methods:
        raise BackendError(
            f"compiled model is on backend '{backend.name}', which writes no files; compile it on "
            f"'{spec.name}', or name the model itself"
        )
