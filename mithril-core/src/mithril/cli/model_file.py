"""The model that a command works on: `SCRIPT:NAME`, and the shapes of its inputs.

The script with the model is loaded as a module, so what stands under `__name__ == "__main__"` does
not run.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from mithril.cli.launch import check_script
from mithril.errors import OptionError, kind_of, nearest

if TYPE_CHECKING:
    import mithril as ml
    from mithril.runtime.backend import Backend
    from mithril.runtime.compiled import CompiledModel

MOST_ELEMENTS = 2**62
"""An input has no more elements than this."""
LOADED_AS = "__mithril_model__"
_SHAPE = re.compile(
    r"(?P<name>[^=]+)=(?P<sizes>(\d+(x\d+)*)?)(:(?P<dtype>\w+))?(@(?P<split>[\w.+/-]*))?"
)


def load_target(target: str) -> object:
    """Return what a script calls by a name, written `SCRIPT:NAME`.

    Raises:
        OptionError: it is not written so, or the script has no such name.
    """
    script, _, name = target.rpartition(":")
    if not script or not name.isidentifier():
        raise OptionError(f"'{target}' names no model; write SCRIPT:NAME, such as train.py:model")
    names = load_script(script)
    if name not in names:
        public = [other for other in names if not other.startswith("_")]
        raise OptionError(
            f"script '{script}' has no '{name}'{nearest(name, public)}; name a model that it makes"
        )
    return names[name]


def load_script(script: str) -> Mapping[str, object]:
    """Run a script as a module, and return what it calls by name; what it prints goes to stderr.

    Raises:
        OptionError: there is no such script.
    """
    check_script(script)
    path = Path(script)
    spec = spec_from_file_location(LOADED_AS, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"script '{script}' is no Python file; give one that ends in .py")
    module = module_from_spec(spec)
    sys.modules[LOADED_AS] = module
    sys.path.insert(0, str(path.parent.absolute()))
    sys.argv = [script]  # as if it had been started
    with redirect_stdout(sys.stderr):  # what a command prints is data
        spec.loader.exec_module(module)
    return vars(module)


def compile_target(
    found: object,
    target: str,
    open_backend: Callable[[], Backend],
    shapes: str,
    gradients: bool | None,
    refused: Mapping[str, object],
) -> CompiledModel:
    """Return what the script calls by the name, compiled and planned if it is not yet.

    Args:
        found: what it is.
        target: as it was written, for messages.
        open_backend: opens the backend for a model that is not compiled.
        shapes: as `read_shapes` reads them.
        gradients: whether gradients are planned, too; by default they are.
        refused: options that are for models only, with what was given.

    Raises:
        OptionError: it is no model, or shapes are missing.
    """
    import mithril as ml
    from mithril.models import Layer
    from mithril.runtime.compiled import CompiledModel

    if isinstance(found, CompiledModel):
        if any(refused.values()):
            raise OptionError(
                f"'{target}' is compiled, for {found.backend.mesh!r}; {_join(refused)} are for "
                f"models that are not; leave them out"
            )
        return found
    if not isinstance(found, ml.Model | Layer):
        raise OptionError(f"'{target}' is {kind_of(found)}; name a model or a compiled model")
    compiled = ml.compile(found, open_backend())
    if compiled.inputs and not shapes:
        example = ",".join(f"{name}=8x16" for name in compiled.inputs)
        raise OptionError(f"'{target}' needs the sizes of its inputs; give --shapes {example}")
    compiled.plan_for(read_shapes(shapes), gradients=gradients is not False)
    return compiled


def _join(names: Mapping[str, object]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"


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
        if math.prod(sizes) > MOST_ELEMENTS:
            raise OptionError(
                f"--shapes part '{part}' has more than {MOST_ELEMENTS} elements; give smaller sizes"
            )
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
