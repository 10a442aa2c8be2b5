"""Numbers in a grid, the darker the larger: as a table, and as a figure with a scale beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mithril.mesh.tables import name_axes
from mithril.tables import Table, make_grid, shade, text_color
from mithril.units import Unit
from mithril.visualize.figures import CHARACTER, FONT, LINE, PathLike, make_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELLS = 16
"""Of more rows or columns the numbers are not written into a figure."""
TICKS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """Numbers in a grid.

    Args:
        title: what they are.
        lines: heads of the rows, and `across` of the columns.
        corner: what the rows are, and `head` the columns.
        values: rows of numbers.
        most: the number that is darkest; the lightest is 0.
        write: returns the text of a number.
        unit: of the scale: its size, and what it is called there.
    """

    title: str
    lines: Sequence[str]
    across: Sequence[str]
    corner: str
    head: str
    values: np.ndarray
    most: float
    write: Callable[[float], str]
    unit: Unit

    @property
    def is_written(self) -> bool:
        """Whether there are so few numbers that they are written into a figure."""
        return all(count <= CELLS for count in self.values.shape)

    def color_of(self, value: float) -> str:
        """Return the colour of a number; one that is not known is as light as 0."""
        return shade(value / self.most if self.most and value > 0 else 0.0)

    def tabulate(self) -> Table:
        """Return it as a table; rows and columns in the middle of many are left out."""

        def cell(i: int, j: int) -> tuple[str, str]:
            value = float(self.values[i, j])
            return self.write(value), self.color_of(value)

        corner = name_axes(self.corner, self.head)
        return make_grid(self.title, corner, self.lines, self.across, cell)


def join_equal_rows(
    lines: Sequence[int], values: np.ndarray, write: Callable[[float], str]
) -> list[list[int]]:
    """Return groups of neighbouring rows that read the same."""
    groups: list[list[int]] = []
    texts = [tuple(write(float(value)) for value in row) for row in values]
    for line in lines:
        if groups and texts[groups[-1][-1]] == texts[line]:
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def plot_heat(heat: Heat, path: PathLike | None) -> Figure:
    """Return numbers as a figure, saved if there is a path."""
    figure = make_figure(*measure_heat(heat))
    draw_heat(figure.add_subplot(), heat)
    return save(figure, path)


def measure_heat(heat: Heat) -> tuple[float, float]:
    """Return how wide and high a picture of numbers has to be, in inches."""
    height, width = heat.values.shape
    longest = max(len(heat.write(float(value))) for value in heat.values.flat)
    longest = max(longest, *map(len, heat.across))
    cell = max(longest * CHARACTER + 0.1, 0.4) if heat.is_written else 6.0 / width
    heads = max(map(len, heat.lines)) * CHARACTER
    across = max(cell * width + heads, len(heat.title) * CHARACTER * 1.15)
    down = height * LINE * 1.15 if heat.is_written else min(6.0, max(2.5, height * 0.15))
    return across + 1.6, down + 1.2


def draw_heat(axes: Axes, heat: Heat) -> None:
    """Draw numbers as coloured cells, with a scale; of few cells the numbers are written, too."""
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("blues", [shade(x / 8) for x in range(9)])
    size, unit = heat.unit
    most = heat.most / size or 1
    image = axes.imshow(heat.values / size, vmin=0, vmax=most, cmap=colors, aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label(unit, fontsize=FONT)
    bar.ax.tick_params(labelsize=FONT)
    axes.set_title(heat.title, fontsize=FONT + 2, loc="left")
    axes.set_xlabel(heat.head, fontsize=FONT)
    axes.set_ylabel(heat.corner, fontsize=FONT)
    turned = 90 if max(map(len, heat.across)) > 3 and not heat.is_written else 0
    for axis, names, angle in ((axes.xaxis, heat.across, turned), (axes.yaxis, heat.lines, 0)):
        chosen = range(0, len(names), -(-len(names) // TICKS))
        axis.set_ticks(chosen, [names[at] for at in chosen], fontsize=FONT, rotation=angle)
    if heat.is_written:
        for (i, j), value in np.ndenumerate(heat.values):
            color = text_color(heat.color_of(float(value)))
            text = heat.write(float(value))
            axes.text(j, i, text, color=color, ha="center", va="center", fontsize=FONT)
