"""What each device holds at the peak, by kind, and how much it holds over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mithril.cost.liveness import HOST
from mithril.cost.memory import PARTS, DeviceMemory, PlanMemory
from mithril.errors import OptionError, kind_of
from mithril.tables import PALETTE, Table, describe_devices, pick, shorten
from mithril.units import BYTES, choose_unit, format_bytes
from mithril.visualize.figures import (
    CHARACTER,
    FONT,
    LINE,
    PathLike,
    make_figure,
    open_frame,
    save,
    write_title,
)
from mithril.visualize.terminal import print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = dict(zip(PARTS, PALETTE, strict=False))
BARS, CURVES = 24, 8
"""How many groups of devices are drawn: the first and the last, and those that hold most."""
SEEN = 4
"""Times the peak; a capacity above that is said in the title alone."""


def plot_memory(memory: PlanMemory, *, path: PathLike | None = None) -> Figure:
    """Return what devices hold at their peak, by kind, and how much they hold over time.

    Devices that hold the same share a bar and a curve.

    Args:
        memory: such as `compiled.plan.memory()`.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: it is none; matplotlib is not installed, or the path cannot be written.
    """
    _check(memory)
    rows = [memory.rows[at] for at in pick(len(memory.rows), BARS) if at is not None]
    heads = max(len(describe_devices(row.devices)) for row in rows) * CHARACTER
    figure = make_figure(11.0 + heads, max(3.2, len(rows) * LINE * 1.2 + 1.6))
    left, right = figure.subplots(1, 2)
    write_title(figure, _title(memory))
    _draw_peaks(left, rows, memory)
    _draw_curves(right, rows, memory)
    for axes in (left, right):
        open_frame(axes)
    return save(figure, path)


def print_memory(memory: PlanMemory) -> None:
    """Print what devices hold at their peak, by kind; devices that hold the same share a row.

    Args:
        memory: such as `compiled.plan.memory()`.

    Raises:
        OptionError: it is none.
    """
    _check(memory)
    kinds = _kinds(memory.rows)
    rows = [
        (
            describe_devices(row.devices),
            format_bytes(row.peak),
            *(format_bytes(row.parts.get(kind, 0)) for kind in kinds),
        )
        for row in memory.rows
    ]
    notes = (f"the peak is at {max(memory.rows, key=lambda row: row.peak).at}",)
    print_table(Table(_title(memory), ("who", "peak", *kinds), shorten(rows), notes=notes))


def _check(memory: object) -> None:
    if not isinstance(memory, PlanMemory):
        raise OptionError(
            f"memory is drawn of what plan.memory() returns, not of {kind_of(memory)}; give "
            f"compiled.plan.memory()"
        )


def _title(memory: PlanMemory) -> str:
    count = sum(len(row.devices) for row in memory.rows)
    room = "" if memory.capacity is None else f" of {format_bytes(memory.capacity)}"
    most = f"at most {format_bytes(memory.peak)}{room} on a device"
    return f"memory of {count} devices, predicted with profile '{memory.profile}': {most}"


def _kinds(rows: Sequence[DeviceMemory]) -> list[str]:
    """Return the kinds of things that some device holds, in the order in which they are drawn."""
    return [kind for kind in PARTS if any(row.parts.get(kind) for row in rows)]


def _draw_peaks(axes: Axes, rows: Sequence[DeviceMemory], memory: PlanMemory) -> None:
    size, unit = choose_unit(memory.peak, BYTES)
    starts = [0.0] * len(rows)
    for kind in (kind for kind in _kinds(rows) if kind != HOST):
        widths = [row.parts.get(kind, 0) / size for row in rows]
        axes.barh(range(len(rows)), widths, left=starts, color=COLORS[kind], label=kind)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    _draw_capacity(axes.axvline, memory, size)
    axes.set_yticks(range(len(rows)), [describe_devices(row.devices) for row in rows])
    axes.set_ylim(max(len(rows), 4) - 0.5, -0.5)
    axes.set_xlabel(f"{unit} at the peak", fontsize=FONT)
    axes.legend(
        fontsize=FONT, frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0.0, 1.0)
    )  # fmt: skip


def _draw_curves(axes: Axes, rows: Sequence[DeviceMemory], memory: PlanMemory) -> None:
    from matplotlib.ticker import MaxNLocator

    size, unit = choose_unit(memory.peak, BYTES)
    fullest = sorted(rows, key=lambda row: -row.peak)[:CURVES]
    for row in sorted(fullest, key=lambda row: row.devices):
        heights = [held / size for held in row.curve]
        label = describe_devices(row.devices)
        axes.plot(range(len(heights)), heights, drawstyle="steps-post", linewidth=1, label=label)
    top = max(fullest, key=lambda row: row.peak)
    if top.curve:
        where = max(range(len(top.curve)), key=lambda at: top.curve[at])
        axes.plot([where], [top.curve[where] / size], "o", color="black", markersize=4)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_capacity(axes.axhline, memory, size)
    axes.set_xlabel(f"nodes that have run; the peak is at {top.at}", fontsize=FONT)
    axes.set_ylabel(f"{unit} on a device", fontsize=FONT)
    axes.legend(
        fontsize=FONT, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0)
    )  # fmt: skip


def _draw_capacity(draw: Callable[..., object], memory: PlanMemory, size: float) -> None:
    """Draw a line where a device is full, if that is near enough to be seen beside the rest."""
    if memory.capacity is not None and memory.capacity <= SEEN * memory.peak:
        label = f"a device holds {format_bytes(memory.capacity)}"
        draw(memory.capacity / size, color="#d62728", linestyle="--", linewidth=1, label=label)
