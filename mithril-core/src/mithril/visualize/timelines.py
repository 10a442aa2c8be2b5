"""When each device computes and communicates, as a plan's timeline predicts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mithril.cost.events import COMMUNICATION, COMPUTE, COPIES, RECEIVED, SENT, Event
from mithril.cost.plan_timeline import PlanTimeline
from mithril.errors import OptionError, kind_of
from mithril.tables import PALETTE, describe_devices
from mithril.units import SECONDS, choose_unit, format_seconds
from mithril.visualize.figures import PathLike
from mithril.visualize.lanes import Bar, Lanes, plot_lanes, print_lanes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAMS = (COMPUTE, COMMUNICATION, COPIES, SENT, RECEIVED)
CLOSE = 1e-6
"""Events that follow each other within this share of the step are drawn as one."""


def plot_timeline(timeline: PlanTimeline, *, path: PathLike | None = None) -> Figure:
    """Return when each device computes and communicates in a step.

    Devices that do the same share a row for each stream: what they compute, the collectives, and
    what goes to other stages of a pipeline and comes from them. A bar is the work for a layer, or
    for a micro-batch of a pipeline.

    Args:
        timeline: such as `compiled.plan.timeline()`.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: it is no timeline; matplotlib is not installed, or the path cannot be written.
    """
    return plot_lanes(_make_lanes(timeline), path)


def print_timeline(timeline: PlanTimeline) -> None:
    """Print when each device computes and communicates in a step.

    Args:
        timeline: such as `compiled.plan.timeline()`.

    Raises:
        OptionError: it is no timeline.
    """
    print_lanes(_make_lanes(timeline))


def _make_lanes(timeline: PlanTimeline) -> Lanes:
    if not isinstance(timeline, PlanTimeline):
        raise OptionError(
            f"a timeline is drawn of what plan.timeline() returns, not of {kind_of(timeline)}; "
            f"give compiled.plan.timeline()"
        )
    size, unit = choose_unit(timeline.seconds, SECONDS)
    used = {event.stream for row in timeline.rows for event in row.events}
    layers = _name_layers(timeline)
    streams = [stream for stream in STREAMS if stream in used]
    names, rows = [], []
    for row in timeline.rows:
        for stream in streams:
            events = [event for event in row.events if event.stream == stream]
            names.append(f"{describe_devices(row.devices)}, {stream}")
            labels = [_label(event, layers) for event in events]
            rows.append(list(_join(events, labels, timeline.seconds, size)))
    count = sum(len(row.devices) for row in timeline.rows)
    return Lanes(
        title=f"step of {format_seconds(timeline.seconds)} on {count} devices, predicted with "
        f"profile '{timeline.profile}': utilization {_percent(timeline.utilization)}, "
        f"bubble {_percent(timeline.bubble)}",
        names=names,
        rows=rows,
        axis=f"time in {unit}",
        colors=_choose_colors(timeline),
        gap=max(len(streams), 1),
    )


def _choose_colors(timeline: PlanTimeline) -> dict[str, str]:
    """Return a colour for each phase, and from the other end of the palette for what is sent."""
    events = [event for row in timeline.rows for event in row.events]
    phases = dict.fromkeys(_kind(event) for event in events if event.stream == COMPUTE)
    others = dict.fromkeys(_kind(event) for event in events if event.stream != COMPUTE)
    return {
        **dict(zip(phases, PALETTE * len(phases), strict=False)),
        **dict(zip(others, PALETTE[::-1] * len(others), strict=False)),
    }


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _kind(event: Event) -> str:
    """Return what the legend calls an event."""
    if event.stream == COMPUTE:
        return event.phase
    return f"over {'+'.join(event.axes)}" if event.axes else event.stream


def _label(event: Event, layers: Mapping[str, str]) -> str:
    """Return what is written on an event: its layer, its micro-batch, or its collective."""
    if event.stream == COMMUNICATION:
        return event.kind
    if event.microbatch is not None:
        return str(event.microbatch)
    return layers[event.scope] if event.stream == COMPUTE else ""


def _name_layers(timeline: PlanTimeline) -> dict[str, str]:
    """Return for each layer path the name in it that is written: the first that tells layers apart.

    That is the first part of a path which less than half of all paths have.
    """
    scopes = dict.fromkeys(event.scope for row in timeline.rows for event in row.events)
    parts = {scope: scope.split(".") for scope in scopes}
    counts = Counter(tuple(p[:n]) for p in parts.values() for n in range(1, len(p) + 1))
    return {
        scope: next(
            (name for n, name in enumerate(path, 1) if 2 * counts[tuple(path[:n])] < len(scopes)),
            path[-1],
        )
        for scope, path in parts.items()
    }


def _join(
    events: Sequence[Event], labels: Sequence[str], seconds: float, size: float
) -> Iterator[Bar]:
    """Yield bars, one for events that follow each other and have one kind and label."""
    bar: Bar | None = None
    for event, label in zip(events, labels, strict=True):
        start, end, kind = event.start / size, event.end / size, _kind(event)
        if bar is None:
            bar = Bar(start, end, label, kind)
            continue
        is_close = start - bar.end <= CLOSE * seconds / size
        if is_close and (bar.kind, bar.label) == (kind, label):
            start = bar.start
        else:
            yield bar
        bar = Bar(start, end, label, kind)
    if bar is not None:
        yield bar
