"""Tables of installed things and their states, as `backends list` and `plugins list` print them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import typer

from mithril.plugins.discover import Status

COLORS = {
    Status.ready: typer.colors.GREEN,
    Status.installed: typer.colors.GREEN,
    Status.missing: typer.colors.YELLOW,
    Status.blocked: typer.colors.YELLOW,
}


class HasStatus(Protocol):
    """What is listed."""

    @property
    def status(self) -> Status:
        """Whether it can be used."""
        ...


Listed = TypeVar("Listed", bound=HasStatus)


def make_table(
    header: Sequence[str], entries: Sequence[Listed], row: Callable[[Listed], Sequence[str]]
) -> str:
    """Return a table of entries, and a line that counts their states.

    Args:
        header: titles of the columns.
        entries: what is listed.
        row: the cells of an entry, one of which is its state.
    """
    rows = [header, *map(row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    counts = Counter(entry.status for entry in entries)
    summary = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    colored = [_color_text(line, entry) for line, entry in zip(lines[1:], entries, strict=True)]
    return "\n".join([lines[0], *colored, summary])


def uses_color() -> bool:
    """Return whether colours are shown: on a terminal, unless `NO_COLOR` is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _color_text(line: str, entry: HasStatus) -> str:
    status = entry.status.value
    color = COLORS.get(entry.status, typer.colors.RED)
    return line.replace(f"  {status}", f"  {typer.style(status, fg=color)}", 1)
