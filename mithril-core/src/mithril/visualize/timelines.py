"""When each device computes and communicates, as a plan's timeline predicts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from mithril.errors import OptionError, kind_of
from mithril.tables import PALETTE, describe_devices
from mithril.visualize.figures import PathLike
from mithril.visualize.lanes import Bar, Lanes, plot_lanes, print_lanes
from mithril.visualize.units import SECONDS, choose_unit, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAMS = ("compute", "communication")
CLOSE = 1e-6
"""Events that follow each other within this share of the step are drawn as one."""


class EventLike(Protocol):
    """What a picture asks of an event; see `mithril.cost.plan_timeline.Event`."""

    @property
    def scope(self) -> str:
        """Layer path."""

    @property
    def phase(self) -> str:
        """Such as `forward`."""

    @property
    def stream(self) -> str:
        """One of `STREAMS`."""

    @property
    def start(self) -> float:
        """In seconds."""

    @property
    def end(self) -> float:
        """In seconds."""

    @property
    def kind(self) -> str:
        """Of the op or the collective."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Mesh axes of a collective."""

    @property
    def microbatch(self) -> int | None:
        """Its number, in a pipeline."""


class DeviceTimelineLike(Protocol):
    """What a picture asks of the events of devices that are alike."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Flat indices."""

    @property
    def events(self) -> Sequence[EventLike]:
        """What they do."""


class TimelineLike(Protocol):
    """What a picture asks of a timeline; see `mithril.cost.PlanTimeline`."""

    @property
    def rows(self) -> Sequence[DeviceTimelineLike]:
        """Devices that are alike share a row."""

    @property
    def seconds(self) -> float:
        """Of the step."""

    @property
    def utilization(self) -> float:
        """Share of the peak rate."""

    @property
    def bubble(self) -> float:
        """Share of time that devices wait for others."""


def plot_timeline(timeline: TimelineLike, *, path: PathLike | None = None) -> Figure:
    """Return when each device computes and communicates in a step.

    Devices that do the same share two rows, one for each stream. A bar is the work for a layer, or
    for a micro-batch of a pipeline.

    Args:
        timeline: such as `compiled.plan.timeline()`.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: it is no timeline; matplotlib is not installed, or the path cannot be written.
    """
    return plot_lanes(_make_lanes(timeline), path)


def print_timeline(timeline: TimelineLike) -> None:
    """Print when each device computes and communicates in a step.

    Args:
        timeline: such as `compiled.plan.timeline()`.

    Raises:
        OptionError: it is no timeline.
    """
    print_lanes(_make_lanes(timeline))


def _make_lanes(timeline: TimelineLike) -> Lanes:
    if not hasattr(timeline, "rows") or not hasattr(timeline, "seconds"):
        raise OptionError(
            f"a timeline is drawn of what plan.timeline() returns, not of {kind_of(timeline)}; "
            f"give compiled.plan.timeline()"
        )
    size, unit = choose_unit(timeline.seconds, SECONDS)
    names, rows = [], []
    for row in timeline.rows:
        for stream in STREAMS:
            events = sorted(
                (event for event in row.events if event.stream == stream),
                key=lambda event: event.start,
            )
            names.append(f"{describe_devices(row.devices)}, {stream}")
            rows.append(list(_join(events, timeline.seconds, size)))
    count = sum(len(row.devices) for row in timeline.rows)
    return Lanes(
        title=f"timeline of a step: {format_seconds(timeline.seconds)} on {count} devices, "
        f"utilization {100 * timeline.utilization:.0f} %, bubble {100 * timeline.bubble:.0f} %",
        names=names,
        rows=rows,
        axis=f"time in {unit}",
        colors=_choose_colors(timeline),
        gap=len(STREAMS),
    )


def _choose_colors(timeline: TimelineLike) -> dict[str, str]:
    """Return a colour for each phase, and from the other end of the palette for each axis."""
    events = [event for row in timeline.rows for event in row.events]
    phases = dict.fromkeys(_kind(event) for event in events if event.stream == STREAMS[0])
    axes = dict.fromkeys(_kind(event) for event in events if event.stream != STREAMS[0])
    return {
        **dict(zip(phases, PALETTE * len(phases), strict=False)),
        **dict(zip(axes, PALETTE[::-1] * len(axes), strict=False)),
    }


def _kind(event: EventLike) -> str:
    if event.stream == STREAMS[0]:
        return event.phase
    over = "+".join(event.axes)
    return f"{over} (collectives)" if over else f"{event.kind} (to other stages)"


def _label(event: EventLike) -> str:
    if event.stream != STREAMS[0]:
        return event.kind
    return event.scope.partition(".")[0] if event.microbatch is None else str(event.microbatch)


def _join(events: Sequence[EventLike], seconds: float, size: float) -> Iterator[Bar]:
    """Yield bars, one for events that follow each other and have one kind and label."""
    bar: Bar | None = None
    for event in events:
        start, end = event.start / size, event.end / size
        kind, label = _kind(event), _label(event)
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
