"""The page of a plan: one HTML file with all it needs in it, made of the files of this folder.

It loads nothing from anywhere. What the user named is data in it, which its script shows as text:
a name that looks like HTML stays a name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from mithril.plan import Plan
from mithril.plan.printer import over, times_of
from mithril.report.prediction import Prediction
from mithril.tables import describe_devices
from mithril.units import format_bytes, format_seconds

MOST_EVENTS = 4000
"""A row of the timeline shows at most so many events: the longest."""
MOST_POINTS = 2000
"""A curve has at most so many points: each is the highest of those it stands for."""


def render_page(found: Prediction, title: str) -> str:
    """Return a self-contained HTML page of a plan and what it costs.

    Args:
        found: the plan and its prediction.
        title: of the page, such as the model's name.
    """
    # `<` is written otherwise, so that no name ends the element that holds the data.
    data = json.dumps(_data(found, title)).replace("<", "\\u003c")
    page = _read("page.html")
    for mark, content in (("STYLE", _read("style.css")), ("SCRIPT", _read("page.js"))):
        page = page.replace(f"/*{mark}*/", content)
    return page.replace("/*DATA*/", data)


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _data(found: Prediction, title: str) -> dict[str, Any]:
    plan = found.plan
    collectives = list(_collectives(plan))
    tensors = list(_tensors(plan))
    places = [row["layer"] for row in collectives] + [row[0] for row in tensors]
    return {
        "title": title,
        "subtitle": f"{plan.mesh!r}, priced with profile '{found.hardware.name}'",
        "model": title,
        "figures": list(_figures(found)),
        "mesh": {
            "axes": [[axis.name, axis.size] for axis in plan.mesh.axes],
            "devices": plan.mesh.size,
        },
        "layers": list(_layers(places)),
        "tensors": tensors,
        "collectives": collectives,
        "timeline": _timeline(found),
        "memory": _memory(found),
    }


def _figures(found: Prediction) -> Iterator[tuple[str, str]]:
    figures = found.figures
    yield "seconds of a step", format_seconds(found.timeline.seconds)
    capacity = found.memory.capacity
    of = "" if capacity is None else f" of {format_bytes(capacity)}"
    yield "memory of the fullest device", f"{format_bytes(found.memory.peak)}{of}"
    if found.memory.fits is not None:
        yield "fits", "yes" if found.memory.fits else "no"
    for name in ("tokens", "samples"):
        if figures[f"{name}_per_second"] is not None:
            yield f"{name} per second", f"{figures[f'{name}_per_second']:.4g}"
    yield "of peak flops", f"{100 * found.timeline.utilization:.1f} %"
    if len(found.plan.stages) > 1:
        yield "bubble", f"{100 * found.timeline.bubble:.1f} %"
    for axes, moved in figures["bytes_by_axis"].items():
        yield f"a device over {axes}", format_bytes(moved)


def _layers(places: Sequence[str]) -> Iterator[str]:
    """Yield the paths of all layers, each after the one it is in, in the order of the model."""
    seen: dict[str, None] = {}
    for place in places:
        steps = place.split(".") if place else []
        for depth in range(1, len(steps) + 1):
            seen.setdefault(".".join(steps[:depth]))
    return iter(seen)


def _tensors(plan: Plan) -> Iterator[list[str]]:
    """Yield layer, name, type, split, local shape and who decided, of each tensor."""
    for name, report in plan.specs.items():
        layer, _, _ = name.rpartition(".")
        local = report.sharding.local_shape(report.type.shape)
        split = report.sharding.describe()
        yield [layer, name, str(report.type), split, str(local), report.decided_by]


def _collectives(plan: Plan) -> Iterator[dict[str, Any]]:
    timed = plan.pricing is not None and not plan.pricing.unknown_platform
    for row in plan.collectives():
        cause = row.cause
        yield {
            "layer": row.scope,
            "what": f"{over(row)}{times_of(row)}",
            "phase": str(row.phase),
            "bytes": row.bytes * row.times,
            "time": format_seconds(cause.seconds * row.times) if timed else "",
            "value": ", ".join(cause.parts) or cause.value,
            "why": f"{cause.produced} -> {cause.required} for {cause.consumer}",
            "instead": [other.option for other in cause.instead],
            "source": row.source,
        }


def _timeline(found: Prediction) -> dict[str, Any]:
    rows = []
    for row in found.timeline.rows:
        events = sorted(row.events, key=lambda event: event.start - event.end)[:MOST_EVENTS]
        shown = [
            [event.start, event.end, event.stream, f"{event.name} {event.scope}".strip()]
            for event in sorted(events, key=lambda event: event.start)
        ]
        rows.append({"devices": describe_devices(row.devices), "events": shown})
    hidden = sum(max(0, len(row.events) - MOST_EVENTS) for row in found.timeline.rows)
    note = f"one step of {format_seconds(found.timeline.seconds)}; equal devices share a row"
    if hidden:
        note += f"; the {hidden} shortest events are not drawn"
    return {"rows": rows, "seconds": found.timeline.seconds, "note": note}


def _memory(found: Prediction) -> dict[str, Any]:
    rows = [
        {
            "devices": describe_devices(row.devices),
            "text": f"at most {format_bytes(row.peak)}, at {row.at}",
            "curve": _thin(row.curve),
        }
        for row in found.memory.rows
    ]
    note = "bytes alive after each op of a step"
    if found.memory.capacity is not None:
        note += f"; the line is what a device has, {format_bytes(found.memory.capacity)}"
    return {"rows": rows, "capacity": found.memory.capacity, "note": note}


def _thin(curve: Sequence[int]) -> list[int]:
    """Return a curve with few points, none of whose peaks is lost.

    >>> _thin([1, 5, 2])
    [1, 5, 2]
    """
    width = -(-len(curve) // MOST_POINTS) or 1
    return [max(curve[at : at + width]) for at in range(0, len(curve), width)]
