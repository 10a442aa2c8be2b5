"""`mithril plugins`: which plugins are installed, whether they work, and what they bring.

Both commands load the modules of plugins, which are light, and nothing that these bring.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Annotated

import typer

from mithril.cli.faults import list_frames
from mithril.cli.table import make_table, uses_color
from mithril.errors import BackendError
from mithril.plugins.discover import Status
from mithril.plugins.extensions import PluginEntry, find_plugin, list_plugins, require_plugin

JSON_SCHEMA = 1
CANNOT_USE = 3
HEADER = ("NAME", "PACKAGE", "STATUS", "BRINGS", "NOTE")

app = typer.Typer(help="The installed plugins.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 unless every plugin is ready.")
    ] = False,
) -> None:
    """List the installed plugins, whether each can be used, and what it brings."""
    entries = list_plugins()
    if as_json:
        typer.echo(_as_json(entries))
    elif entries:
        typer.echo(make_table(HEADER, entries, _row), color=uses_color())
    else:
        typer.echo("no plugins are installed; `mithril backends list` shows the backends")
    if strict and any(entry.status is not Status.ready for entry in entries):
        raise typer.Exit(1)


@app.command("info")
def info(
    name: Annotated[str, typer.Argument(help="A plugin's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show all that a plugin brings, by name, or where it failed."""
    entry = find_plugin(name)
    if entry is not None and as_json:
        typer.echo(json.dumps(_json_row(entry), indent=2))
    elif entry is not None:
        typer.echo(f"{entry.name}   {entry.distribution}   ({entry.point.value})")
        typer.echo(f"  {'status':<15} {entry.status}")
        for kind, brought in entry.brings.items():
            typer.echo(f"  {kind.replace('_', ' '):<15} {', '.join(brought)}")
    try:
        require_plugin(name)
    except BackendError as error:
        if entry is not None and entry.error is not None:
            typer.echo("\n".join(list_frames(entry, entry.error)), err=True)
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(CANNOT_USE) from None


def _as_json(entries: tuple[PluginEntry, ...]) -> str:
    document = {
        "schema": JSON_SCHEMA,
        "mithril": version("mithril-core"),
        "plugins": [_json_row(entry) for entry in entries],
    }
    return json.dumps(document, indent=2)


def _json_row(entry: PluginEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "package": entry.package,
        "package_version": entry.package_version,
        "status": entry.status.value,
        "brings": {kind: list(brought) for kind, brought in entry.brings.items()},
        "note": entry.note,
        "entry_point": entry.point.value,
    }


def _row(entry: PluginEntry) -> tuple[str, ...]:
    brings = (_count(kind, len(names)) for kind, names in entry.brings.items())
    return (
        entry.name,
        entry.distribution,
        entry.status.value,
        ", ".join(brings) or ("nothing" if entry.status is Status.ready else "?"),
        entry.note,
    )


def _count(kind: str, number: int) -> str:
    """Return how many there are of a kind, such as `1 graph pass` or `2 layers`."""
    words = kind.replace("_", " ")
    one = words.removesuffix("es") if words.endswith("passes") else words.removesuffix("s")
    return f"{number} {one if number == 1 else words}"
