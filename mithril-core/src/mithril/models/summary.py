"""A model as a plain-text table: layers, connections, parameters, shardings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mithril.models.composition import Composition, Member
from mithril.models.layer import Layer

_HEADER = ("name", "layer", "connections", "parameters")
_MODEL = "Model"
Row = tuple[str, str, str, str]


def summarize(composition: Composition) -> str:
    """Return the table of a model, one row a layer, nested models indented by their path."""
    first: dict[int, str] = {}
    rows = list(_rows(composition, "", first))
    inputs = ", ".join(composition.input_ports) or "none"
    outputs = ", ".join(composition.output_ports) or "none"
    layers = sum(1 for row in rows if row[1] != _MODEL)
    title = f"{composition.label}: {layers} layers, inputs {inputs}, outputs {outputs}"
    rules = [
        f"{'at rest' if rule.at_rest else 'shard'} {rule.pattern}: {rule.spec!r}"
        for rule in composition.rules
    ]
    return "\n".join([title, *_table([_HEADER, *rows]), *rules]) if rows else title


def _rows(composition: Composition, prefix: str, first: dict[int, str]) -> Iterator[Row]:
    for member in composition.members:
        path = prefix + member.name
        component = member.component
        wires = f"{_sources(composition, member)} -> {_names(composition, member)}"
        if isinstance(component, Composition):
            yield (path, _MODEL, wires, "")
            yield from _rows(component, f"{path}.", first)
        else:
            yield (path, repr(component), wires, _parameters(component, path, first))


def _sources(composition: Composition, member: Member) -> str:
    roots = [composition.root(name) for _, name in member.inputs]
    return ", ".join(composition.shown.get(root, root) for root in roots)


def _names(composition: Composition, member: Member) -> str:
    return ", ".join(composition.shown.get(name, name) for _, name in member.outputs)


def _parameters(layer: Layer, path: str, first: dict[int, str]) -> str:
    owner = first.setdefault(id(layer), path)
    if owner != path and layer.parameters:
        return f"shared with {owner}"
    return ", ".join(_parameter(layer, name) for name in layer.parameters)


def _parameter(layer: Layer, name: str) -> str:
    kept = f" at rest {layer.at_rest[name]}" if name in layer.at_rest else ""
    return f"{name} {layer.annotations[name]}{kept}" if name in layer.annotations else name + kept


def _table(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
