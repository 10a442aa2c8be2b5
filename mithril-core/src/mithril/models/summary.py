"""A model as a plain-text table: layers, connections, shapes, parameters, shardings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mithril.models.composition import Composition, Member
from mithril.models.layer import Layer
from mithril.models.parameter_rule import ParameterRule
from mithril.models.trace import Traced
from mithril.tables import Table, shorten
from mithril.types import TensorType

_HEADER = ("name", "layer", "connections", "makes", "parameters", "numbers")
_BY_SHAPES = (3, 5)
"""Columns that are known only with the shapes."""
_MODEL = "Model"
Row = tuple[str, ...]


def summarize(composition: Composition, traced: Traced | None = None) -> str:
    """Return the table of a model, one row a layer, nested models indented by their path.

    Args:
        composition: the model.
        traced: the model traced for some shapes; without it, columns that need them are left out.
    """
    rows = list(_Rows(traced).of(composition, ""))
    title = _title(composition, rows)
    if traced is not None:
        title += f", {_count(traced, traced.parameter_names)} numbers to learn"
    rules = _list_rules(composition)
    hidden = () if traced is not None else _BY_SHAPES
    return "\n".join([title, *_table([_HEADER, *rows], hidden), *rules]) if rows else title


def tabulate(composition: Composition) -> Table:
    """Return the same as a small table: of many layers the first and the last."""
    rows = list(_Rows(None).of(composition, ""))
    kept = [column for column in range(len(_HEADER)) if column not in _BY_SHAPES]
    chosen = shorten([tuple(row[column] for column in kept) for row in rows])
    heads = tuple(_HEADER[column] for column in kept)
    return Table(
        _title(composition, rows),
        heads if rows else (),
        chosen,
        notes=tuple(line for (line,) in shorten([(line,) for line in _list_rules(composition)])),
    )


def _title(composition: Composition, rows: Sequence[Row]) -> str:
    inputs = ", ".join(composition.input_ports) or "none"
    outputs = ", ".join(composition.output_ports) or "none"
    layers = sum(1 for row in rows if row[1] != _MODEL)
    return f"{composition.label}: {layers} layers, inputs {inputs}, outputs {outputs}"


def _list_rules(composition: Composition) -> list[str]:
    rules = [
        f"{'at rest' if rule.at_rest else 'shard'} {rule.pattern}: {rule.spec!r}"
        for rule in composition.rules
    ]
    rules += map(_format_rule, composition.parameter_rules)
    return [*rules, *(f"tie {name}: {kept}" for name, kept in composition.ties)]


class _Rows:
    """Makes the rows; remembers which layer was met where, for shared ones."""

    def __init__(self, traced: Traced | None) -> None:
        self._traced = traced
        self._first: dict[int, str] = {}

    def of(self, composition: Composition, prefix: str) -> Iterator[Row]:
        """Yield the rows of a model whose path begins with a prefix."""
        for member in composition.members:
            path = prefix + member.name
            component = member.component
            wires = f"{_sources(composition, member)} -> {_names(composition, member)}"
            made = self._format_outputs(member, path)
            if isinstance(component, Composition):
                yield (path, _MODEL, wires, made, "", "")
                yield from self.of(component, f"{path}.")
            else:
                parameters, numbers = self._parameters(component, path)
                yield (path, component.described, wires, made, parameters, numbers)

    def _format_outputs(self, member: Member, path: str) -> str:
        if self._traced is None:
            return ""
        names = [path, *(f"{path}.{port}" for port, _ in member.outputs)]
        found = dict.fromkeys(
            self._traced.value_names[name] for name in names if name in self._traced.value_names
        )
        return ", ".join(str(value.type) for value in found)

    def _parameters(self, layer: Layer, path: str) -> tuple[str, str]:
        owner = self._first.setdefault(id(layer), path)
        if owner != path and layer.parameters:
            return f"shared with {owner}", ""
        shown = ", ".join(_parameter(layer, name) for name in layer.parameters)
        if self._traced is None or not layer.parameters:
            return shown, ""
        return shown, str(_count(self._traced, [f"{path}.{name}" for name in layer.parameters]))


def _count(traced: Traced, names: Sequence[str]) -> int:
    types: dict[str, TensorType] = {value.name: value.type for value in traced.graph.inputs}
    return sum(types[name].size for name in names if name in types)  # not of those tied to others


def _sources(composition: Composition, member: Member) -> str:
    roots = [composition.root(name) for _, name in member.inputs]
    return ", ".join(composition.shown.get(root, root) for root in roots)


def _names(composition: Composition, member: Member) -> str:
    return ", ".join(composition.shown.get(name, name) for _, name in member.outputs)


def _format_rule(rule: ParameterRule) -> str:
    if isinstance(rule.value, bool):
        return f"{'train' if rule.value else 'freeze'} {rule.pattern}"
    return f"initialize {rule.pattern}: {rule.value!r}"


def _parameter(layer: Layer, name: str) -> str:
    kept = f" at rest {layer.at_rest[name]}" if name in layer.at_rest else ""
    return f"{name} {layer.annotations[name]}{kept}" if name in layer.annotations else name + kept


def _table(rows: Sequence[Row], hidden: Sequence[int]) -> list[str]:
    columns = [column for column in range(len(_HEADER)) if column not in hidden]
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    return [
        "  ".join(row[column].ljust(widths[column]) for column in columns).rstrip() for row in rows
    ]
