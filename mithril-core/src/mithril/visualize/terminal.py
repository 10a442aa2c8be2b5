"""Pictures in the terminal, with rich: in colour where it has colours, plain text elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SQUARE
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from mithril.tables import Table, text_color

PADDING = 3
"""Characters that a column needs besides its text."""


def make_console() -> Console:
    """Return a console on what is standard output now."""
    return Console(highlight=False, emoji=False, markup=False)


def style_of(color: str) -> Style:
    """Return the style of text on a background, or none for an empty text."""
    return Style(color=text_color(color), bgcolor=color) if color else Style()


def print_table(table: Table) -> None:
    """Print a table; one that is wider than the terminal in several parts, one below another."""
    console = make_console()
    console.print(Text(table.title, Style(bold=True)))
    for columns in _divide(table, console.width):
        grid = Grid(box=SQUARE)
        for column in columns:
            grid.add_column(Text(table.columns[column]))
        for number, row in enumerate(table.rows):
            cells = [Text(row[c], style_of(table.color(number, c))) for c in columns]
            grid.add_row(*cells)
        console.print(grid)
    for note in table.notes:
        console.print(Text(note))


def _divide(table: Table, width: int) -> Iterator[list[int]]:
    """Yield the columns of each part; the first one heads all of them."""
    widths = [
        max(cell_len(text) for text in (head, *(row[column] for row in table.rows))) + PADDING
        for column, head in enumerate(table.columns)
    ]
    part = [0] if widths else []
    for column in range(1, len(widths)):
        if len(part) > 1 and sum(widths[c] for c in (*part, column)) + 1 > width:
            yield part
            part = [0]
        part.append(column)
    if part:
        yield part


def print_lines(lines: Sequence[Text]) -> None:
    """Print lines as they are, however wide."""
    console = make_console()
    for line in lines:
        console.print(line, soft_wrap=True)
