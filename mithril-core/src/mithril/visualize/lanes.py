"""Lanes: bars along an axis of time, one row for each device or each of its streams.

Timelines and schedules are drawn by them, and printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from mithril.tables import pick, text_color
from mithril.visualize.figures import CHARACTER, FONT, PathLike, make_figure, save
from mithril.visualize.terminal import make_console, print_lines, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 32
"""Lanes of a picture; of more, those in the middle are left out."""
HEIGHT = 0.32
"""Of a lane, in inches."""
PART = "·"
NARROWEST = 60
"""Characters of time in the terminal, at least."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What happens from a start to an end.

    Args:
        start: in the unit of the picture, as is `end`.
        label: written where there is room.
        kind: what the legend calls it.
    """

    start: float
    end: float
    label: str
    kind: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Bars in rows.

    Args:
        title: what they are.
        names: of the rows.
        rows: the bars of each.
        axis: what time is, with its unit.
        colors: of each kind of bar, in the order of the legend.
        inches: how wide the time should be.
        gap: lanes after which there is a line: those of one device belong together.
    """

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[Bar]]
    axis: str
    colors: dict[str, str]
    inches: float = 10.0
    gap: int = 1

    @property
    def end(self) -> float:
        """When the last bar ends."""
        return max((bar.end for row in self.rows for bar in row), default=0.0)

    def list_shown(self) -> list[tuple[str, Sequence[Bar]]]:
        """Return the lanes that are shown; one of the others says how many are left out."""
        chosen = pick(len(self.rows), MOST)
        missing = len(self.rows) - len(chosen) + 1
        return [
            (f"… {missing} more", ()) if at is None else (self.names[at], self.rows[at])
            for at in chosen
        ]

    def kinds(self) -> list[str]:
        """Return the kinds that there are, in the order of the legend."""
        used = {bar.kind for row in self.rows for bar in row}
        return [kind for kind in self.colors if kind in used]


def plot_lanes(lanes: Lanes, path: PathLike | None) -> Figure:
    """Return bars in rows as a figure, with a legend, saved if there is a path."""
    shown = lanes.list_shown()
    heads = max((len(name) for name, _ in shown), default=1) * CHARACTER
    width = max(lanes.inches, len(lanes.title) * CHARACTER * 1.2)
    figure = make_figure(width + heads + 0.6, len(shown) * HEIGHT + 1.5)
    axes = figure.add_subplot()
    scale = width / (lanes.end or 1)
    labelled = _find_labelled(lanes, scale)
    for position, (_, bars) in enumerate(shown):
        _draw_row(axes, position, bars, lanes, labelled, scale)
    axes.set(xlim=(0, lanes.end or 1), ylim=(len(shown) - 0.5, -0.5))
    axes.set_yticks(range(len(shown)), [name for name, _ in shown], fontsize=FONT)
    axes.tick_params(axis="x", labelsize=FONT)
    axes.set_xlabel(lanes.axis, fontsize=FONT)
    axes.set_title(lanes.title, fontsize=FONT + 2, loc="left")
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
    for line in range(lanes.gap, len(shown), lanes.gap):
        axes.axhline(line - 0.5, color="#8888", linewidth=0.5)
    _add_legend(figure, lanes)
    return save(figure, path)


def _draw_row(
    axes: Axes,
    position: int,
    bars: Sequence[Bar],
    lanes: Lanes,
    labelled: set[str],
    scale: float,
) -> None:
    for kind in lanes.kinds():
        spans = [(bar.start, bar.end - bar.start) for bar in bars if bar.kind == kind]
        if spans:
            axes.broken_barh(
                spans, (position - 0.42, 0.84), facecolor=lanes.colors[kind], edgecolor="white",
                linewidth=0.4,
            )  # fmt: skip
    for bar in bars:
        if bar.kind in labelled and _fits(bar, scale):
            middle, color = (bar.start + bar.end) / 2, text_color(lanes.colors[bar.kind])
            axes.text(
                middle, position, bar.label, ha="center", va="center", fontsize=FONT, color=color
            )


def _find_labelled(lanes: Lanes, scale: float) -> set[str]:
    """Return the kinds of bars of which most have room for their labels."""
    bars = [bar for row in lanes.rows for bar in row]
    total = Counter(bar.kind for bar in bars)
    fitting = Counter(bar.kind for bar in bars if bar.label and _fits(bar, scale))
    return {kind for kind in total if 2 * fitting[kind] >= total[kind]}


def _fits(bar: Bar, scale: float) -> bool:
    """Whether a label has room in its bar; the scale is inches in a unit of time."""
    return len(bar.label) * CHARACTER < (bar.end - bar.start) * scale


def _add_legend(figure: Figure, lanes: Lanes) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=lanes.colors[kind], label=kind) for kind in lanes.kinds()]
    if handles:
        figure.legend(
            handles=handles, loc="outside lower left", ncols=min(len(handles), 6), fontsize=FONT,
            frameon=False,
        )  # fmt: skip


def print_lanes(lanes: Lanes) -> None:
    """Print bars in rows, a character for a part of the time, and what the colours mean."""
    shown = lanes.list_shown()
    heads = max((len(name) for name, _ in shown), default=1) + 1
    columns = max(make_console().width - heads - 1, NARROWEST)
    lines = [Text(lanes.title, "bold")]
    lines += [Text(name.ljust(heads)) + _print_row(bars, lanes, columns) for name, bars in shown]
    lines.append(Text(f"{'':{heads}}0{'':{columns - 2 - len(_end(lanes))}} {_end(lanes)}"))
    keys = Text("")
    for kind in lanes.kinds():
        keys += Text(f" {_letter(kind)} ", style_of(lanes.colors[kind])) + Text(f" {kind}  ")
    keys += Text(f"{PART} less than half of the time")
    print_lines([*lines, Text(lanes.axis), keys])


def _end(lanes: Lanes) -> str:
    return f"{lanes.end:.3g}"


def _print_row(bars: Sequence[Bar], lanes: Lanes, columns: int) -> Text:
    """Return a row: at each place the letter of what takes most of its time, or a point.

    A point is where something happens for less than half of the time.
    """
    unit = (lanes.end or 1) / columns
    covered: list[dict[str, float]] = [{} for _ in range(columns)]
    for bar in bars:
        first = min(int(bar.start / unit), columns - 1)
        last = min(int(bar.end / unit), columns - 1)
        for at in range(first, last + 1):
            inside = min(bar.end, (at + 1) * unit) - max(bar.start, at * unit)
            covered[at][bar.kind] = covered[at].get(bar.kind, 0.0) + max(inside, 0.0)
    row = Text()
    for found in covered:
        kind, _ = max(found.items(), key=lambda item: item[1], default=("", 0))
        if sum(found.values()) >= unit / 2:
            row.append(_letter(kind), style_of(lanes.colors[kind]))
        else:
            row.append(PART if kind else " ", lanes.colors.get(kind, ""))
    return row


def _letter(kind: str) -> str:
    """Return what stands for a kind in the terminal.

    >>> _letter("forward"), _letter("over data")
    ('f', 'd')
    """
    return kind.rpartition(" ")[2][0]
