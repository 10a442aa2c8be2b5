"""Writes `docs/layers.md`, which lists layers, losses and functions of arrays, from their texts.

python tools/list_layers.py           # writes the page
python tools/list_layers.py --check   # fails if the page is not what would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import mithril.models
from mithril import ops
from mithril.models import Layer, Repeat, layers
from mithril.runtime.functions import ALIASES, EAGER
from mithril.testing.layer_cases import CASES as LAYER_CASES

PAGE = Path(__file__).parent.parent / "docs" / "layers.md"
LOSSES = ("loss", "class_loss")
"""Modules of layers that are losses; those of the others are listed before them, by name."""
OPENING = """# Layers, losses and functions

Written by `python tools/list_layers.py` from the texts of the layers; `help(ml.Conv2d)` has all of
each. Sizes in brackets are those of the whole tensors, however they are split over devices. Inputs
in parentheses need not be connected. Every layer also takes `name=`, `device_id=`, `sharding=`,
`at_rest=` and, as in the guides, `weight_shard_spec=` with `device_mesh=` and
`device_mesh_partition=`. Parameters have these names behind that of the layer, `up.weight`; options
leave some of them out, and N counts from 0.

## Ids and targets out of range

An id that names no row of an `Embedding`, and a target that is no class of a `CrossEntropy`, is
refused with one and the same `ShapeError` on every backend where it comes from host memory: in NumPy
arrays passed to `evaluate`, to a step of training or to a function under `ml.jit`, also where they
are cut, reshaped or partly ignored before. What lies on devices already, in arrays of a backend or a
framework, is not looked at, as a program would have to wait for it; nor is what eager functions are
called with. There NumPy refuses it when it runs, and the others give NaN (0 in a table of integers).
Negative ids do not count from the end.
"""


def write_page() -> str:
    """Return the text of the page."""
    parts = [OPENING]
    groups = {
        info.name: import_module(f"{layers.__name__}.{info.name}")
        for info in iter_modules(layers.__path__)
    }
    for title, chosen in (
        ("Layers", [group for name, group in groups.items() if name not in LOSSES]),
        ("Losses", [groups[name] for name in LOSSES]),
    ):
        parts.append(f"## {title}\n")
        for group in chosen:
            listed = [getattr(group, name) for name in getattr(group, "__all__", ())]
            rows = [row_of_layer(layer) for layer in listed if is_layer(layer)]
            if rows:
                heading = (group.__doc__ or "").partition("\n")[0].rstrip(".").partition(":")[0]
                width = 5 if any(cells[-1] for cells in rows) else 4
                head = ("layer", "what it does", "inputs", "output", "parameters")[:width]
                lines = [row(*head), "|---" * width + "|", *(row(*cells[:width]) for cells in rows)]
                parts.append(f"### {heading}\n\n" + "\n".join(lines) + "\n")
    parts.append(
        "## Functions\n\nOf `mithril.numpy`, and of a backend for arrays that it has; inside a layer "
        "or a function under `ml.jit` they become a part of the plan.\n"
    )
    head = "| function | what it returns | shape and dtype |\n|---|---|---|"
    parts.append(head + "\n" + "\n".join(map(row_of_function, EAGER)) + "\n")
    return "\n".join(parts)


def is_layer(value: Any) -> bool:
    """Return whether a name of a module is a layer."""
    return isinstance(value, type) and issubclass(value, Layer) and value is not Layer


def row_of_layer(layer: type[Layer]) -> tuple[str, ...]:
    """Return the cells of a layer in a table."""
    text = inspect.getdoc(layer) or ""
    definition = layer.definition
    options = [o.replace(kind=inspect.Parameter.KEYWORD_ONLY) for o in definition.options]
    call = f"{definition.name}{_shown(inspect.Signature(options))}"
    described = dict(entries(section(text, "Args")))
    names = [*definition.inputs, *definition.optional]
    names += [] if definition.variadic is None else [definition.variadic]
    inputs = [
        f"`({name})` {first_clause(described[name])}"
        if name in definition.optional
        else f"`{name}` {shape_in(described[name])}"
        for name in names
        if name in described
    ]
    output = one_line(section(text, "Returns"))
    return f"`{call}`", first_sentence(text), "; ".join(inputs), output, show_parameters(layer)


def show_parameters(layer: type[Layer]) -> str:
    """Return the names of a layer's parameters, of its example and of all its cases in the tests."""
    if layer is Repeat:
        return "those of the block, with a dimension of repetitions first"
    written = re.search(rf">>> ({layer.__name__}\(.*\))(\.|$)", inspect.getdoc(layer) or "", re.M)
    made = [eval(written[1], vars(mithril.models))] if written else []
    made += [case.layer for case in LAYER_CASES if type(case.layer) is layer]
    names = (re.sub(r"layer_\d+", "layer_N", name) for one in made for name in one.parameters)
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def row_of_function(name: str) -> str:
    """Return the row of a function in a table."""
    function: Callable[..., Any] = getattr(ops, ALIASES.get(name, name))
    text = inspect.getdoc(function) or ""
    call = f"`{name}{_shown(inspect.signature(function))}`"
    return row(call, first_sentence(text), one_line(section(text, "Returns")))


def row(*cells: str) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(map(_escape, cells)) + " |"


def _escape(cell: str) -> str:
    """Return a cell whose bars and, outside of code, stars are no markup."""
    parts = cell.replace("|", "\\|").split("`")
    parts[::2] = [part.replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def first_sentence(text: str) -> str:
    """Return the first paragraph of a docstring on one line."""
    return one_line(text.partition("\n\n")[0])


def section(text: str, title: str) -> str:
    """Return what stands under a title of a docstring."""
    found = re.search(rf"^{title}:\n((?:    .*\n?|\n(?=    ))*)", text, flags=re.MULTILINE)
    return found[1] if found else ""


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each entry of a section."""
    for name, body in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, flags=re.MULTILINE):
        yield name, one_line(body)


def shape_in(text: str) -> str:
    """Return the beginning of an entry, up to where the shape ends.

    >>> shape_in("[batch, channels], floats: the values.")
    '[batch, channels]'
    """
    bracketed = re.match(r"\[[^\]]*\]|\([^)]*\)", text)
    return bracketed[0] if bracketed else re.split(r"[,;:.]", text)[0]


def first_clause(text: str) -> str:
    """Return the first sentence of a description without its point.

    >>> first_clause("[batch, other], true where a key is padding. Not for others.")
    '[batch, other], true where a key is padding'
    """
    return text.partition(". ")[0].rstrip(".")


def one_line(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


def _shown(signature: inspect.Signature) -> str:
    """Return a signature as it is called: without annotations and markers."""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    text = str(inspect.Signature(plain))
    return text.replace("(*, ", "(").replace(" *, ", " ")


def main(arguments: list[str]) -> int:
    """Write the page, or say that it is not up to date."""
    text = write_page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    if not is_current:
        print(f"{PAGE.name} is not up to date; run python tools/list_layers.py")
    return int(not is_current)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
