"""`mithril eject`: write the program of a model to a file that runs without Mithril.

The script with the model is loaded as a module, so what stands under `__name__ == "__main__"` does
not run. Only backends that write such files can do it; none of the mesh's devices is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mithril.cli.choice import choose_spec
from mithril.cli.launch import check_script
from mithril.cli.mesh import read_mesh
from mithril.errors import BackendError, OptionError, kind_of, nearest

if TYPE_CHECKING:
    import mithril as ml
    from mithril.plugins.spec import BackendSpec
    from mithril.runtime.compiled import CompiledModel

LOADED_AS = "__mithril_eject__"
_SHAPE = re.compile(
    r"(?P<name>[^=]+)=(?P<sizes>(\d+(x\d+)*)?)(:(?P<dtype>\w+))?(@(?P<split>[\w.+/-]*))?"
)


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
    script, _, name = target.rpartition(":")
    if not script or not name.isidentifier():
        raise OptionError(f"'{target}' names no model; write SCRIPT:NAME, such as train.py:model")
    check_script(script)
    from mithril.plugins.published import PUBLISHED, install_command

    spec = choose_spec(
        backend,
        lambda spec: spec.planning is not None,
        need="mithril eject needs one ready backend that writes files",
        lack="writes no files that run without Mithril",
        remedy=install_command(package for package in PUBLISHED.values() if package.plans),
    )
    found = _load(script, name)
    compiled = _compile(found, spec, mesh, shapes, gradients, target)
    _check_backend(compiled, spec, asked=bool(backend))
    typer.echo(f"wrote {compiled.eject(output, gradients=gradients)}")


def _load(script: str, name: str) -> object:
    """Run a script as a module, and return what it calls by a name."""
    path = Path(script)
    spec = spec_from_file_location(LOADED_AS, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"script '{script}' is no Python file; give one that ends in .py")
    module = module_from_spec(spec)
    sys.modules[LOADED_AS] = module
    sys.path.insert(0, str(path.parent.absolute()))
    sys.argv = [script]  # as if it had been started
    spec.loader.exec_module(module)
    names = vars(module)
    if name not in names:
        public = [other for other in names if not other.startswith("_")]
        raise OptionError(f"script '{script}' has no '{name}'{nearest(name, public)}")
    return names[name]


def _compile(
    found: object,
    spec: BackendSpec,
    mesh: str,
    shapes: str,
    gradients: bool | None,
    target: str,
) -> CompiledModel:
    """Return what the script calls by the name, compiled if it is not yet."""
    import mithril as ml
    from mithril.models import Layer
    from mithril.runtime.compiled import CompiledModel

    if isinstance(found, CompiledModel):
        if mesh or shapes:
            raise OptionError(
                f"'{target}' is compiled, for {found.backend.mesh!r}; --mesh and --shapes are for "
                f"models that are not; leave them out"
            )
        return found
    if not isinstance(found, ml.Model | Layer):
        raise OptionError(f"'{target}' is {kind_of(found)}; name a model or a compiled model")
    options: dict[str, Any] = dict(spec.planning or {})
    backend = ml.open_backend(spec.name, ml.Mesh(read_mesh(mesh) if mesh else None), **options)
    compiled = ml.compile(found, backend)
    if compiled.inputs and not shapes:
        example = ",".join(f"{name}=8x16" for name in compiled.inputs)
        raise OptionError(f"'{target}' needs the sizes of its inputs; give --shapes {example}")
    compiled.plan_for(read_shapes(shapes), gradients=gradients is not False)
    return compiled


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


def read_shapes(text: str) -> Mapping[str, ml.TensorSpec]:
    """Return inputs written as `x=8x16,ids=8x4:int32@data/tensor`.

    Behind `@` stand the mesh axes that split each dimension: `-` for none, `a+b` for two.

    Raises:
        OptionError: it is not written so, or names an input twice.
    """
    import mithril as ml

    found: dict[str, ml.TensorSpec] = {}
    for part in filter(None, text.split(",")):
        match = _SHAPE.fullmatch(part)
        if match is None:
            raise OptionError(
                f"--shapes part '{part}' is no input and its sizes; write --shapes "
                f"x=8x16,ids=8x4:int32@data/tensor"
            )
        if match["name"] in found:
            raise OptionError(f"--shapes names input '{match['name']}' twice; give it one shape")
        sizes = tuple(int(size) for size in match["sizes"].split("x") if size)
        split = () if match["split"] is None else match["split"].split("/")
        dims = [() if dim == "-" else tuple(dim.split("+")) for dim in split]
        if any("" in axes for axes in dims):
            raise OptionError(
                f"--shapes part '{part}' lacks the name of an axis; write - for a dimension that "
                f"is not split, a+b for one that two axes split"
            )
        spec = ml.P(*(axes or None for axes in dims))
        found[match["name"]] = ml.TensorSpec(sizes, match["dtype"] or "float32", spec)
    return found
