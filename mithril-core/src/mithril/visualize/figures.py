"""Figures: made without `pyplot`, so that no window opens and no state of the user's is changed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mithril.errors import OptionError
from mithril.option_checks import check_output
from mithril.tables import Table, text_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PathLike = str | os.PathLike[str]

FONT = 8
"""Size of the text in a figure, in points."""
CHARACTER = 0.62 * FONT / 72
"""Width of a character, in inches: somewhat more than the mean of matplotlib's own font."""
LINE = 0.26
"""Height of a row, in inches."""
WIDEST = 24.0
"""In inches."""


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure, which notebooks show by themselves.

    Args:
        width: in inches.
        height: in inches.

    Raises:
        OptionError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise OptionError(
            "figures need matplotlib, which is not installed; pip install 'mithril-core[plot]', or "
            "print the picture with mithril.visualize.print_…"
        )
    from mithril.visualize.picture import Picture

    return Picture(figsize=(min(width, WIDEST), height), layout="constrained")


def write_title(figure: Figure, title: str) -> None:
    """Write a title over all of a figure, at its left."""
    figure.suptitle(title, fontsize=FONT + 2, x=0.01, ha="left")


def open_frame(axes: Axes) -> None:
    """Leave out the frame of a diagram but for its axes, whose numbers are small."""
    axes.tick_params(labelsize=FONT)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)


def save(figure: Figure, path: PathLike | None) -> Figure:
    """Return a figure, after it was saved if there is a path.

    Raises:
        OptionError: the format is unknown, or no file can be written there.
    """
    if path is None:
        return figure
    where = check_output("path", path)
    known = sorted(figure.canvas.get_supported_filetypes())
    if where.suffix[1:].lower() not in known:
        raise OptionError(
            f"path '{where}' ends in '{where.suffix}', which is no format of figures; formats: "
            f"{', '.join(known)}; write path='picture.png'"
        )
    try:
        figure.savefig(where, dpi=150, bbox_inches="tight")
    except OSError as error:
        raise OptionError(f"path '{where}' cannot be written; {error}; give another one") from error
    return figure


def plot_table(table: Table, path: PathLike | None) -> Figure:
    """Return a table as a figure, saved if there is a path."""
    lines = [[*table.columns], *([*row] for row in table.rows)]
    widths = [
        max(len(line[column]) for line in lines) * CHARACTER + 0.2
        for column in range(len(table.columns))
    ]
    width = max(sum(widths), 1.2 * CHARACTER * max(map(len, (table.title, *table.notes))))
    height = LINE * (len(lines) + len(table.notes))
    figure = make_figure(width + 0.2, height + 0.6)
    axes = figure.add_subplot(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.set_title(table.title, fontsize=FONT + 2, loc="left")
    for number, line in enumerate(lines):
        left = 0.0
        for column, text in enumerate(line):
            color = table.color(number - 1, column) if number else ""
            _draw_cell(axes, (left, number * LINE, widths[column]), text, color, is_head=not number)
            left += widths[column]
    for number, note in enumerate(table.notes, start=len(lines)):
        axes.text(0.1, (number + 0.6) * LINE, note, fontsize=FONT, va="center", style="italic")
    return save(figure, path)


def _draw_cell(
    axes: Axes, place: tuple[float, float, float], text: str, color: str, *, is_head: bool
) -> None:
    from matplotlib.patches import Rectangle

    left, top, width = place
    if color:
        axes.add_patch(Rectangle((left, top), width, LINE, facecolor=color, edgecolor="white"))
    paint = {"color": text_color(color)} if color else None
    weight = "bold" if is_head else "normal"
    axes.text(
        left + 0.1, top + LINE / 2, text, fontsize=FONT, va="center", weight=weight, fontdict=paint
    )  # fmt: skip
