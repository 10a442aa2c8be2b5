"""A pipeline schedule: when each device works on which micro-batch, and when it waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from mithril.cost.timeline import Costs, Timeline, simulate
from mithril.errors import OptionError, PlanError, kind_of
from mithril.plan import Plan
from mithril.plan.schedule import Schedule, Work
from mithril.report import draw
from mithril.tables import PALETTE
from mithril.visualize.figures import PathLike
from mithril.visualize.lanes import Bar, Lanes, plot_lanes
from mithril.visualize.terminal import print_lines, style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    Work.forward: "forward",
    Work.backward: "backward",
    Work.input_gradient: "input gradient",
    Work.weight_gradient: "weight gradient",
}
COLORS = dict(zip(KINDS.values(), PALETTE, strict=False))
INCHES = 0.36
"""Of the shortest action, if there is room."""


def plot_schedule(
    schedule: Schedule | Plan,
    costs: Costs | Sequence[Costs] | None = None,
    *,
    path: PathLike | None = None,
) -> Figure:
    """Return when each device of a pipeline works on which micro-batch.

    Args:
        schedule: a schedule, or a plan that has one, such as `compiled.plan`.
        costs: how long the work of a stage takes, of each stage or one for all; by default each
            forward, and each half of a backward, takes 1 and sending takes none.
        path: where to save the figure; the ending says in which format.

    Raises:
        OptionError: it is neither; matplotlib is not installed, or the path cannot be written.
        PlanError: the plan has no schedule, its devices wait for each other for ever, or not every
            stage has costs.
    """
    return plot_lanes(_make_lanes(_simulate(schedule, costs)), path)


def print_schedule(schedule: Schedule | Plan, costs: Costs | Sequence[Costs] | None = None) -> None:
    """Print when each device of a pipeline works on which micro-batch, as `mithril schedule` does.

    Args:
        schedule: a schedule, or a plan that has one, such as `compiled.plan`.
        costs: how long the work of a stage takes, of each stage or one for all.

    Raises:
        OptionError: it is neither.
        PlanError: the plan has no schedule, its devices wait for each other for ever, or not every
            stage has costs.

    >>> from mithril.plan.schedule import read_table
    >>> print_schedule(read_table("mine", ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]))
    mine: 2 devices, 2 micro-batches, bubble 33.3 %, activations of at most 2 micro-batches
      0 F0 F1       B0···    B1···
      1    F0 B0··· F1 B1···
    """
    title, *rows = draw(_simulate(schedule, costs)).splitlines()
    lines = [Text(row) for row in rows]
    for line in lines:
        for work, kind in KINDS.items():
            line.highlight_regex(rf"\d*{work}\d+·*", style_of(COLORS[kind]))
    print_lines([Text(title, "bold"), *lines])


def _simulate(schedule: object, costs: Costs | Sequence[Costs] | None) -> Timeline:
    return simulate(_find_schedule(schedule), Costs() if costs is None else costs)


def _make_lanes(timeline: Timeline) -> Lanes:
    made = timeline.schedule
    shortest = min(
        (end - timeline.starts[a] for a, end in timeline.ends.items() if end > timeline.starts[a]),
        default=1.0,
    )
    numbers = "stage:micro-batch" if _has_several(timeline) else "micro-batches"
    return Lanes(
        title=f"schedule {made.name}: {len(made.rows)} devices, {made.stages} stages, "
        f"{made.microbatches} micro-batches, bubble {100 * timeline.bubble:.1f} %",
        names=[f"device {number}" for number in range(len(made.rows))],
        rows=_make_rows(timeline),
        axis=f"time, in the unit of the costs; numbers are {numbers}",
        colors=COLORS,
        inches=min(max(timeline.makespan / shortest * INCHES, 5.0), 20.0),
    )


def _find_schedule(given: object) -> Schedule:
    if isinstance(given, Schedule):
        return given
    if not isinstance(given, Plan):
        raise OptionError(
            f"a schedule is drawn of a Schedule or a Plan, not of {kind_of(given)}; give "
            f"compiled.plan"
        )
    if given.timetable.schedule is None:
        raise PlanError(
            "plan has no pipeline schedule to draw; it has one if its model has a Pipeline, or "
            "stages"
        )
    return given.timetable.schedule


def _make_rows(timeline: Timeline) -> list[list[Bar]]:
    """Return the bars; a label is a micro-batch, after its stage where a device has several."""
    several = _has_several(timeline)
    return [
        [
            Bar(
                timeline.starts[action],
                timeline.ends[action],
                f"{action.stage}:{action.microbatch}" if several else str(action.microbatch),
                KINDS[action.work],
            )
            for action in row
        ]
        for row in timeline.schedule.rows
    ]


def _has_several(timeline: Timeline) -> bool:
    """Whether a device has several stages."""
    return timeline.schedule.stages > len(timeline.schedule.rows)
