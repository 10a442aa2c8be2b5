"""What pictures are made of in tests: timelines and memories by hand, and what a figure shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mithril as ml
from mithril import P
from mithril.cost.events import Event
from mithril.cost.memory import PARTS, DeviceMemory
from mithril.cost.plan_timeline import DeviceTimeline, PlanTimeline


def event(start: float, end: float, **said: Any) -> Event:
    """Return an event, of the forward of a layer unless something else is said."""
    usual = {"name": "x", "scope": "block.up", "phase": "forward", "stream": "compute"}
    return Event(**{**usual, "kind": "einsum", **said}, start=start, end=end)


def make_timeline(seconds: float, *rows: DeviceTimeline) -> PlanTimeline:
    return PlanTimeline(rows, seconds, 1, 0.4, 0.25, {}, {}, {}, (), "mine")


def hold(devices: tuple[int, ...], curve: tuple[int, ...], **parts: int) -> DeviceMemory:
    """Return what devices hold, by kind."""
    peak = sum(parts.values())
    every = {**dict.fromkeys(PARTS, 0), **parts}
    return DeviceMemory(devices, peak, every, "einsum (up)", (), curve)


def texts(figure: Any) -> list[str]:
    """Return every text of a figure that is not empty, titles, labels and legends included."""
    import matplotlib.text

    found = [item.get_text() for item in figure.findobj(matplotlib.text.Text)]
    return [text for text in found if text]


def find_overlaps(figure: Any) -> list[tuple[str, str]]:
    """Return pairs of texts of which one covers more than a sliver of the other."""
    import matplotlib.text
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    hidden = {label for axes in figure.axes for label in _find_outside(axes)}
    shown = [
        (item.get_text(), item.get_window_extent(renderer))
        for item in figure.findobj(matplotlib.text.Text)
        if item.get_text().strip() and item.get_visible() and item not in hidden
    ]
    return [
        (name, other)
        for position, (name, box) in enumerate(shown)
        for other, its in shown[position + 1 :]
        if min(box.x1, its.x1) - max(box.x0, its.x0) > 1
        and min(box.y1, its.y1) - max(box.y0, its.y0) > 2
    ]


def _find_outside(axes: Any) -> list[Any]:
    """Return the labels of ticks that are not drawn, as they lie outside of the axes."""
    return [
        label
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    ]


def cells(figure: Any) -> int:
    """Return how many coloured cells the figure of a table has."""
    return len(figure.axes[0].patches)


def mlp() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(64, name="up", sharding={"weight": P("tensor", None)})(
        input="input", output="h"
    )
    model += ml.Relu()
    model += ml.Linear(16, name="down", sharding={"weight": P(None, "tensor")})(output="output")
    return model


def compile_mlp(mesh: ml.Mesh, shape: Sequence[int] = (8, 32)) -> ml.CompiledModel:
    return ml.compile(mlp(), ml.NumpyBackend(mesh), shapes={"input": tuple(shape)})
