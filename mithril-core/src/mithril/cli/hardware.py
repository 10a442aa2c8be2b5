"""`mithril hardware`: which profiles of hardware there are, and what one says and from where."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mithril.cost.profiles import Entry, Profile

JSON_SCHEMA = 1
HEADER = ("NAME", "FROM", "MEMORY", "BFLOAT16", "STATUS", "NOTE")


def hardware(
    which: Annotated[
        str, typer.Argument(help="A name, or the path of a file.  [default: all names]")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the profiles of hardware that price plans, or show one with its sources."""
    from mithril.cost.profiles import list_profiles, load_profile
    from mithril.cost.profiles.reader import write_content

    if not which:
        entries = list_profiles()
        typer.echo(_as_json(entries) if as_json else _as_table(entries))
        return
    profile = load_profile(which)
    if as_json:
        document = {"schema": JSON_SCHEMA, **write_content(profile), "sources": profile.sources}
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo("\n".join(_describe(profile)))


def _as_json(entries: Sequence[Entry]) -> str:
    rows = [
        {
            "name": entry.name,
            "package": entry.package,
            "status": "broken" if entry.fault else "ready",
            "note": entry.fault or (entry.profile.summary if entry.profile else ""),
        }
        for entry in entries
    ]
    return json.dumps({"schema": JSON_SCHEMA, "hardware": rows}, indent=2)


def _as_table(entries: Sequence[Entry]) -> str:
    rows = [HEADER, *map(_row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(entry: Entry) -> tuple[str, ...]:
    from mithril.cost.profiles.units import BYTES, RATE
    from mithril.types import DType

    if entry.profile is None:
        return entry.name, entry.package, "?", "?", "broken", entry.fault
    found = entry.profile.hardware
    memory = "-" if found.memory_bytes is None else BYTES.write(found.memory_bytes)
    rate = RATE.write(found.peak(DType.bfloat16))
    return entry.name, entry.package, memory, rate, "ready", entry.profile.summary


def _describe(profile: Profile) -> Iterator[str]:
    """Show the figures of a profile, each with its source."""
    from mithril.cost.profiles.reader import write_content

    found = profile.hardware
    yield f"{found.name} — {profile.summary}" if profile.summary else found.name
    yield f"  {'from':<28} {found.origin}"
    for key, text in _flatten(write_content(profile)):
        source = profile.sources.get(key, "")
        yield f"  {key:<28} {text}" + (f"   ({source})" if source else "")


def _flatten(content: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the figures of a file's content by their keys."""
    if isinstance(content, dict):
        for name, value in content.items():
            if key or name not in ("format", "name", "summary", "matches"):
                yield from _flatten(value, f"{key}.{name}" if key else name)
    elif isinstance(content, list) and content and isinstance(content[0], dict):
        for number, value in enumerate(content):
            yield from _flatten(value, f"{key}[{number}]")
    elif isinstance(content, list):
        points = [f"{rate} at {size}" for size, rate in content]
        yield key, ", ".join(points) if len(points) > 1 else content[0][1]
    else:
        yield key, str(content)
