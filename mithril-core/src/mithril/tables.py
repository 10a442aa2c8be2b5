"""Tables: what meshes, plans, models and arrays show of themselves, as plain data.

A class that shows itself in notebooks makes tables of what it is; `render_html` is all of the HTML
there is, and escapes every text. `mithril.visualize` shows the same tables in the terminal and as
figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

ROWS, COLUMNS = 16, 16
"""Of more rows or columns the first and the last are shown."""
GAP = "…"
"""Stands where rows or columns are left out."""
PALETTE = (
    "#8ecae6", "#ffd166", "#a3d9a5", "#f4a6a6", "#c9b1e8", "#f7b267", "#9fd8cb", "#e0c3a0",
    "#f2a7d0", "#c5cbd3",
)  # fmt: skip
"""Colours on which black text can be read, and which can be told apart."""
_STYLE = "padding:2px 8px;text-align:left;border:1px solid #8888"


@dataclass(frozen=True, slots=True)
class Table:
    """A small table of texts.

    Args:
        title: what it shows.
        columns: heads of the columns.
        rows: the cells of each row, as many as there are columns.
        colors: the background of each cell as `#rrggbb`, or an empty text; empty if none has one.
        notes: lines below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    colors: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def color(self, row: int, column: int) -> str:
        """Return the background of a cell, or an empty text."""
        return self.colors[row][column] if self.colors else ""


def make_grid(
    title: str,
    corner: str,
    lines: Sequence[str],
    columns: Sequence[str],
    cell: Callable[[int, int], tuple[str, str]],
    notes: tuple[str, ...] = (),
    most: int = ROWS,
) -> Table:
    """Return a grid of cells; of many rows or columns those in the middle are left out.

    Args:
        title: what it shows.
        corner: what the heads of the rows are.
        lines: heads of the rows.
        columns: heads of the columns.
        cell: returns text and colour of a cell that is shown.
        notes: lines below it.
        most: rows to show.

    >>> make_grid("t", "", ["a"], ["x", "y"], lambda i, j: (f"{i}{j}", "")).rows
    (('a', '00', '01'),)
    """
    across = pick(len(columns), COLUMNS)
    rows, colors = [], []
    for i in pick(len(lines), most):
        cells = [(GAP, "") if i is None or j is None else cell(i, j) for j in across]
        rows.append((GAP if i is None else lines[i], *(text for text, _ in cells)))
        colors.append(("", *(color for _, color in cells)))
    heads = (corner, *(GAP if j is None else columns[j] for j in across))
    return Table(title, heads, tuple(rows), tuple(colors), notes)


def render_html(tables: Iterable[Table]) -> str:
    """Return tables as HTML, one below another; all texts are escaped.

    >>> render_html([Table("<script>", (), ())])
    '<div><div><b>&lt;script&gt;</b></div></div>'
    """
    return f"<div>{''.join(map(_render, tables))}</div>"


def _render(table: Table) -> str:
    heads = "".join(f'<th style="{_STYLE}">{escape(head)}</th>' for head in table.columns)
    rows = "".join(
        f"<tr>{''.join(_cell(text, table.color(i, j)) for j, text in enumerate(row))}</tr>"
        for i, row in enumerate(table.rows)
    )
    notes = "".join(f"<div>{escape(note)}</div>" for note in table.notes)
    grid = f"<table><tr>{heads}</tr>{rows}</table>" if table.columns else ""
    return f"<div><b>{escape(table.title)}</b></div>{grid}{notes}"


def _cell(text: str, color: str) -> str:
    paint = f";background:{color};color:{text_color(color)}" if color else ""
    return f'<td style="{_STYLE}{paint}">{escape(text)}</td>'


def color_of(number: int) -> str:
    """Return a colour of the palette for a number; after the last one they begin again."""
    return PALETTE[number % len(PALETTE)]


def shade(fraction: float) -> str:
    """Return a colour between nearly white, for 0, and dark blue, for 1.

    >>> shade(0.0), shade(1.0)
    ('#f7fbff', '#08306b')
    """
    light, middle, dark = (247, 251, 255), (107, 174, 214), (8, 48, 107)
    low, high, part = (
        (light, middle, 2 * fraction) if fraction < 0.5 else (middle, dark, 2 * fraction - 1)
    )
    mixed = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{min(max(level, 0), 255):02x}" for level in mixed)


def text_color(background: str) -> str:
    """Return black or white, whichever can be read on a colour (relative luminance of WCAG 2).

    >>> text_color("#f7fbff"), text_color("#08306b")
    ('#000000', '#ffffff')
    """
    levels = [int(background[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in levels]
    luminance = sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if luminance > 0.18 else "#ffffff"


def pick(count: int, most: int) -> list[int | None]:
    """Return the positions to show of so many: all, or the first and last with None in between.

    >>> pick(3, 4), pick(100, 5)
    ([0, 1, 2], [0, 1, 2, None, 99])
    """
    if count <= most:
        return list(range(count))
    last = max(1, (most - 1) // 4)
    return [*range(most - 1 - last), None, *range(count - last, count)]


def shorten(rows: Sequence[tuple[str, ...]], most: int = ROWS) -> tuple[tuple[str, ...], ...]:
    """Return rows of texts, those in the middle of many replaced by one that says how many.

    >>> shorten([("a",), ("b",), ("c",), ("d",)], most=3)
    (('a',), ('… 2 more',), ('d',))
    """
    chosen = pick(len(rows), most)
    if len(chosen) == len(rows):
        return tuple(rows)
    missing = len(rows) - len(chosen) + 1
    return tuple(
        rows[at] if at is not None else (f"{GAP} {missing} more", *[""] * (len(rows[0]) - 1))
        for at in chosen
    )


def describe_devices(devices: Sequence[int]) -> str:
    """Return the flat indices of devices as a short text.

    >>> describe_devices([3]), describe_devices(range(512))
    ('device 3', 'devices 0-511')
    """
    return f"device{'s' if len(devices) != 1 else ''} {list_numbers(devices)}"


def list_numbers(numbers: Sequence[int]) -> str:
    """Return increasing numbers as ranges; of many ranges the first two and the last.

    >>> list_numbers([0, 1, 2, 3, 8]), list_numbers([0, 4]), list_numbers(range(0, 512, 8))
    ('0-3, 8', '0, 4', '0, 8, …, 504 (64)')
    """
    runs = list(_find_runs(numbers))
    shown = [f"{first}-{last}" if first < last else f"{first}" for first, last in runs]
    if len(shown) <= 4:
        return ", ".join(shown)
    return f"{shown[0]}, {shown[1]}, {GAP}, {shown[-1]} ({len(numbers)})"


def _find_runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for number in numbers:
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = number
    if first is not None and last is not None:
        yield first, last
