"""A profile as text: what was measured, and beside it what was predicted, with their ratio.

Predictions are printed where a hardware profile describes the devices, and say which one it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mithril.plan import Plan
from mithril.report.profile import (
    DeviceFigures,
    ProfiledRun,
    ProfileFigures,
    group_runs,
    merge_memory,
    sum_by_axes,
    sum_by_layer,
)
from mithril.units import format_bytes, format_seconds

Unit = Callable[[float], str]

if TYPE_CHECKING:
    from mithril.cost import PlanMemory, PlanTimeline

PLANS, LAYERS, DEVICES = 4, 16, 64
"""How many of each are printed."""
HEAD = f"{'':<44}{'measured':>12}{'predicted':>12}{'ratio':>8}"
OUTSIDE = "(outside layers)"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a profile was asked for.

    Args:
        communication: exchanges of data.
        memory: what is in use.
        compute: time by layer and device.
    """

    communication: bool = True
    memory: bool = True
    compute: bool = True


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was predicted of a plan.

    Args:
        profile: name of the hardware profile.
        timeline: times.
        memory: bytes.
    """

    profile: str
    timeline: PlanTimeline
    memory: PlanMemory


def predict(plan: Plan) -> Prediction | None:
    """Return what is predicted of a plan; None where no profile describes its devices."""
    pricing = plan.pricing
    if pricing is None or pricing.unknown_platform or plan.analyst is None:
        return None
    return Prediction(pricing.profile, plan.timeline(), plan.memory())


def write_summary(figures: ProfileFigures, shown: Shown) -> str:
    """Return what `Profile.summary` returns."""
    plans = group_runs(figures.runs)
    took = sum(run.seconds for run in figures.runs)
    lines = [
        f"profile of '{figures.backend}' on {figures.mesh!r}: "
        f"{_count(len(figures.runs), 'run')} of {_count(len(plans), 'plan')}, "
        f"{format_seconds(took)} of {format_seconds(figures.seconds)}",
        HEAD,
    ]
    for same in plans[:PLANS]:
        lines += _describe_plan(same, shown, figures)
    if rest := plans[PLANS:]:
        runs = [run for same in rest for run in same]
        label = f"{_count(len(runs), 'run')} of {_count(len(rest), 'other plan')}"
        lines.append(row(label, format_seconds(sum(run.seconds for run in runs))))
    lines += _describe_utilization(figures.devices, figures) if shown.compute else []
    lines += _describe_predictions(plans)
    lines += _describe_overhead(figures)
    return "\n".join(lines)


def _describe_plan(
    runs: Sequence[ProfiledRun], shown: Shown, figures: ProfileFigures
) -> Iterator[str]:
    """Yield lines of a run of a plan, on average."""
    count, predicted = len(runs), predict(runs[0].plan)
    timeline = None if predicted is None else predicted.timeline
    yield f"{runs[0].caller}, {_count(count, 'run')}; of one run:"
    took = sum(run.seconds for run in runs) / count
    yield compare("  time", took, None if timeline is None else timeline.seconds, format_seconds)
    if shown.memory:
        yield from _describe_memory(runs, None if predicted is None else predicted.memory)
    if shown.communication:
        yield from _describe_collectives(runs, timeline, len(figures.here))
    if shown.compute:
        yield from _describe_layers(runs, timeline, figures.in_turn)


def _describe_memory(runs: Sequence[ProfiledRun], predicted: PlanMemory | None) -> Iterator[str]:
    found = merge_memory(use for run in runs for use in run.memory)
    for use in sorted(found, key=lambda use: -use.peak)[:1]:
        expected = None
        if predicted is not None:
            expected = sum(predicted.of(device).peak for device in use.devices)
        which = f"device {use.devices[0]}"
        if len(use.devices) > 1:
            which = f"{len(use.devices)} devices of one process"
        yield compare(f"  peak memory, {which}", use.peak, expected, format_bytes)


def _describe_collectives(
    runs: Sequence[ProfiledRun], timeline: PlanTimeline | None, devices: int
) -> Iterator[str]:
    """Yield bytes by kind and axes, and time by axes, on average over the devices."""
    sizes: defaultdict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(lambda: [0, 0])
    for run in runs:
        for issued in run.issued:
            found = sizes[issued.kind, issued.axes]
            found[0] += 1
            found[1] += issued.bytes
    planned: defaultdict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    for collective in runs[0].plan.collectives():
        planned[collective.kind, collective.axes] += collective.bytes * collective.times
    for (kind, axes), (times, moved) in sizes.items():
        over = f" over {' x '.join(axes)}" if axes else ""
        label = f"  {kind}{over}, {times / len(runs):g} times"
        yield compare(label, moved / len(runs), planned[kind, axes], format_bytes)
    for where, (took, exposed) in sum_by_axes(runs, devices).items():
        expected, exposed_too = None, None
        if timeline is not None:
            expected = timeline.communication.get(where)
            exposed_too = timeline.exposed.get(where)
        yield compare(f"  communication, {where}", took / len(runs), expected, format_seconds)
        yield compare("    of which exposed", exposed / len(runs), exposed_too, format_seconds)


def _describe_layers(
    runs: Sequence[ProfiledRun], timeline: PlanTimeline | None, in_turn: bool
) -> Iterator[str]:
    by_layer = sum_by_layer(runs, in_turn)
    found = {layer: sum(both) / len(runs) for layer, both in by_layer.items()}
    rows = sorted(found.items(), key=lambda item: -item[1])
    for layer, took in rows[:LAYERS]:
        expected = None if timeline is None else timeline.layers.get(layer)
        yield compare(f"  layer {layer or OUTSIDE}", took, expected, format_seconds)
    if len(rows) > LAYERS:
        rest = sum(took for _, took in rows[LAYERS:])
        yield row(f"  {len(rows) - LAYERS} more layers", format_seconds(rest))


def _describe_utilization(found: DeviceFigures, figures: ProfileFigures) -> Iterator[str]:
    own = found.utilization[list(figures.here)] if figures.here else np.zeros(0)
    own = own[~np.isnan(own)]
    if own.size:
        how = ", each by itself: they run in turn" if figures.in_turn else ""
        label = f"devices compute {100 * own.min():.0f} % to {100 * own.max():.0f} % of the time"
        yield label + how


def _describe_predictions(plans: Sequence[Sequence[ProfiledRun]]) -> Iterator[str]:
    """Yield which profiles predicted, and why there is no prediction where there is none."""
    pricings = [runs[0].plan.pricing for runs in plans]
    names = sorted({p.profile for p in pricings if p is not None and not p.unknown_platform})
    for name in names:
        yield f"predicted with profile '{name}'; ratio is measured / predicted"
    for platform in sorted({p.unknown_platform for p in pricings if p is not None} - {""}):
        yield f"nothing is predicted: no profile describes '{platform}'"


def _describe_overhead(figures: ProfileFigures) -> Iterator[str]:
    beside, within = figures.overhead
    took = sum(run.seconds for run in figures.runs) or 1.0
    inside = f"about {format_seconds(within)} within the runs ({100 * within / took:.1f} %)"
    if np.isnan(within):
        inside = "not known within the runs"
    yield f"overhead of the profile: {inside}, {format_seconds(beside)} beside them"


def write_device_summary(figures: ProfileFigures, found: DeviceFigures, shown: Shown) -> str:
    """Return what `Profile.device_summary` returns."""
    predicted = [
        prediction for runs in group_runs(figures.runs) if (prediction := predict(runs[0].plan))
    ]
    lines = [
        f"{'device':<10}{'compute':>12}{'waits':>12}{'utilised':>10}"
        f"{'peak memory':>14}{'predicted':>12}{'ratio':>8}"
    ]
    together = [use for use in figures.memory if len(use.devices) > 1]
    for device in range(min(figures.mesh.size, DEVICES)):
        peak, expected = found.peak[device], None
        if predicted and shown.memory:
            expected = max(prediction.memory.of(device).peak for prediction in predicted)
        cells = [_cell(found.compute[device]), _cell(found.communication[device])]
        cells.append(_percent(found.utilization[device]))
        if not shown.compute:
            cells = ["-", "-", "-"]
        memory = "-" if np.isnan(peak) or not shown.memory else format_bytes(peak)
        tail = ["-", "-"]
        if expected is not None:
            tail = [format_bytes(expected), "-" if memory == "-" else f"{peak / expected:.2f}"]
        lines.append(
            f"{device:<10}{cells[0]:>12}{cells[1]:>12}{cells[2]:>10}{memory:>14}"
            f"{tail[0]:>12}{tail[1]:>8}"
        )
    if figures.mesh.size > DEVICES:
        lines.append(f"and {figures.mesh.size - DEVICES} devices more")
    if shown.memory:
        lines += [
            f"memory of {len(use.devices)} devices together: {format_bytes(use.peak)}"
            for use in together
        ]
        lines += [f"memory by {how}" for how in sorted({use.how for use in figures.memory})]
    lines += _describe_predictions(group_runs(figures.runs))
    return "\n".join(lines)


def compare(label: str, measured: float, predicted: float | None, unit: Unit) -> str:
    """Return a line with what was measured, what was predicted, and their ratio."""
    if predicted is None:
        return row(label, unit(measured))
    ratio = f"{measured / predicted:.2f}" if predicted else "-"
    return row(label, unit(measured), unit(predicted), ratio)


def row(label: str, measured: str, predicted: str = "-", ratio: str = "-") -> str:
    """Return a line of the table."""
    shown = label if len(label) <= 44 else f"{label[:41]}..."
    return f"{shown:<44}{measured:>12}{predicted:>12}{ratio:>8}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _cell(value: float) -> str:
    return "-" if np.isnan(value) else format_seconds(value)


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.0f} %"


__all__ = ["Prediction", "Shown", "predict", "write_device_summary", "write_summary"]
