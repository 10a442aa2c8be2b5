"""Strategies as JSON that a person can read and change: a version, then field by field.

A field that this version does not know is refused rather than left out: it would say something.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mithril.errors import MithrilError, OptionError, listing, nearest
from mithril.mesh import PartitionSpec
from mithril.option_checks import check_choice
from mithril.options import PipelineOptions
from mithril.partition.pipeline.model_placement import check_schedule
from mithril.runtime.strategy.data import OBJECTIVES, Alternative, Findings, StrategyData

FORMAT = "mithril strategy"
VERSION = 1
_SPECS = ("shardings", "in_shardings", "value_shardings")
_SHAPES = ("parameters", "inputs")


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_SINGLE: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("axis", "schedule", "context_parallel", "auto_partition"),
        (_is_text, "a text, which may be empty"),
    ),
    "microbatch_size": (lambda n: n is None or _is_count(n), "a number of samples, or null"),
    "accumulate": (_is_count, "a number of micro-batches, at least 1"),
    "zero": (lambda n: type(n) is int and 0 <= n <= 3, "a stage from 0 to 3"),
    "checkpointing": (
        lambda x: _is_text(x) or (type(x) is float and 0 < x <= 1),
        "a policy as checkpointing= takes it, or a fraction above 0",
    ),
}
"""The fields that are one word or number: what each may be, and what that means."""


def to_json(strategy: StrategyData) -> str:
    """Return a strategy as JSON text, what is said first and what was found last."""
    said = {item.name: getattr(strategy, item.name) for item in fields(strategy)}
    said |= {name: {n: _spec_out(s) for n, s in said[name].items()} for name in _SPECS}
    said |= {name: {n: list(shape) for n, shape in said[name].items()} for name in _SHAPES}
    said["mesh"] = dict(strategy.mesh)
    said["findings"] = asdict(strategy.findings)
    # What a reader changes stands first.
    order = [name for name in said if name not in (*_SHAPES, "findings")]
    content = {"format": FORMAT, "version": VERSION, **{name: said[name] for name in order}}
    content |= {name: said[name] for name in (*_SHAPES, "findings")}
    return _dump(content)


def from_json(text: str) -> dict[str, Any]:
    """Return the fields of the strategy that a JSON text describes.

    Raises:
        OptionError: it describes none, one of a newer version, or one with unknown fields.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise OptionError(f"strategy is no JSON; {error}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise OptionError(f"JSON holds no strategy: its 'format' is not '{FORMAT}'")
    version = content.pop("version", None)
    if type(version) is not int or not 0 < version <= VERSION:
        raise OptionError(
            f"strategy has version {version!r}, and this Mithril reads versions up to {VERSION}; "
            f"use the Mithril that wrote it, or tune anew"
        )
    return _read_fields(content)


def read_file(path: str | Path) -> dict[str, Any]:
    """Return the fields of the strategy in a file.

    Raises:
        OptionError: it cannot be read, or holds none.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, TypeError, UnicodeDecodeError) as error:
        raise OptionError(f"strategy '{path}' cannot be read; {error}") from error
    try:
        return from_json(text)
    except OptionError as error:
        raise OptionError(f"file '{path}': {error}") from error


def is_strategy(text: str) -> bool:
    """Return whether a JSON text says that it is a strategy."""
    with suppress(ValueError):
        content = json.loads(text)
        return isinstance(content, dict) and content.get("format") == FORMAT
    return False


def _read_fields(content: dict[str, Any]) -> dict[str, Any]:
    known = [item.name for item in fields(StrategyData)]
    for name in content:
        if name not in known:
            raise OptionError(
                f"strategy has a field '{name}', which says nothing here"
                f"{nearest(name, known)}; fields: {listing(known)}"
            )
    try:
        found = dict(content)
        for name in _SPECS:
            found[name] = {n: _spec_in(spec) for n, spec in found.get(name, {}).items()}
        for name in _SHAPES:
            found[name] = {n: tuple(map(_size, shape)) for n, shape in found[name].items()}
        found["mesh"] = {str(axis): _size(size) for axis, size in found["mesh"].items()}
        _check_single(found)
        found["stages"] = {p: _stage(number) for p, number in found.get("stages", {}).items()}
        found["zero_axes"] = tuple(found.get("zero_axes", ()))
        found["findings"] = _findings_in(found.get("findings", {}))
        strategy = StrategyData(**found)
        if strategy.auto_partition:
            check_choice("auto_partition", strategy.auto_partition, OBJECTIVES)
        strategy.make_mesh()
        check_schedule(strategy.pipeline or PipelineOptions())
    except MithrilError as error:
        raise OptionError(f"strategy says what cannot be; {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"strategy has a field of the wrong form; {error!r}") from error
    return found


def _check_single(content: Mapping[str, Any]) -> None:
    """Raise unless the fields that are one word or number are such.

    Raises:
        OptionError: one is something else.
    """
    for name, (is_right, meaning) in _SINGLE.items():
        if name in content and not is_right(content[name]):
            raise OptionError(f"{name} is {content[name]!r}; give {meaning}")


def _findings_in(content: Mapping[str, Any]) -> Findings:
    rows = tuple(Alternative(**row) for row in content.get("alternatives", ()))
    found = Findings(**{**content, "alternatives": rows})
    check_choice("findings 'objective'", found.objective, OBJECTIVES)
    return found


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no size")
    return value


def _stage(value: object) -> int | tuple[int, ...]:
    return tuple(map(_size, value)) if isinstance(value, list) else _size(value)


def _spec_out(spec: PartitionSpec) -> list[Any]:
    return [list(entry) if isinstance(entry, tuple) else entry for entry in spec.entries]


def _spec_in(entries: list[Any]) -> PartitionSpec:
    return PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in entries))


def _dump(content: Mapping[str, Any]) -> str:
    """Return JSON in which what is small stands on one line."""

    def write(value: Any, indent: int) -> str:
        flat = json.dumps(value)
        if len(flat) + indent <= 96 or not isinstance(value, dict | list) or not value:
            return flat
        space = " " * (indent + 2)
        if isinstance(value, list):
            rows = [space + write(item, indent + 2) for item in value]
            return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"
        rows = [f"{space}{json.dumps(k)}: {write(v, indent + 2)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"

    return write(content, 0) + "\n"


__all__ = ["FORMAT", "VERSION", "from_json", "is_strategy", "read_file", "to_json"]
