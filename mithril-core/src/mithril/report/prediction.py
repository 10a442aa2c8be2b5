"""Prediction: what a plan costs on some hardware, before it runs, as figures and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mithril.cost import (
    Hardware,
    PlanMemory,
    PlanTimeline,
    collective_seconds,
    predict_memory,
    predict_timeline,
)
from mithril.plan import Collective, Plan
from mithril.plan.printer import over, times_of
from mithril.units import format_bytes, format_seconds

TOP = 8
"""So many collectives are named, those that take most."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan costs on some hardware.

    Args:
        plan: what runs.
        hardware: the profile it is priced with.
        memory: what each device holds.
        timeline: when each device does what.
        samples: how many are in a batch; 0 if no input has a batch.
        tokens: how many are in a batch, if an input of integers has two dimensions, else 0.
    """

    plan: Plan
    hardware: Hardware
    memory: PlanMemory
    timeline: PlanTimeline
    samples: int
    tokens: int

    @property
    def figures(self) -> dict[str, Any]:
        """The figures by name: seconds, bytes, shares between 0 and 1; None is not known."""
        seconds = self.timeline.seconds
        return {
            "profile": self.hardware.name,
            "devices": self.plan.mesh.size,
            "fits": self.memory.fits,
            "memory_peak": self.memory.peak,
            "memory_capacity": self.memory.capacity,
            "memory_by_kind": dict(self._fullest.parts),
            "memory_peak_at": self._fullest.at,
            "step_seconds": seconds,
            "samples_per_second": self.samples / seconds if self.samples and seconds else None,
            "tokens_per_second": self.tokens / seconds if self.tokens and seconds else None,
            "utilization": self.timeline.utilization,
            "bubble": self.timeline.bubble,
            "bytes_by_axis": self.plan.bytes_by_axis(),
            "communication_seconds": dict(self.timeline.communication),
            "exposed_seconds": dict(self.timeline.exposed),
        }

    @property
    def _fullest(self) -> Any:
        return max(self.memory.rows, key=lambda row: row.peak)

    @property
    def top(self) -> list[tuple[Collective, float]]:
        """The collectives that take most on this hardware, and their seconds, costliest first."""
        rows = [row for row in self.plan.collectives() if row.cause.seconds]
        priced = [(row, self._price(row) * row.times) for row in rows]
        return sorted(priced, key=lambda pair: -pair[1])[:TOP]

    def _price(self, row: Collective) -> float:
        return collective_seconds(row.kind, row.bytes, row.axes, self.plan.mesh, self.hardware)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def predict(plan: Plan, inputs: Sequence[str], hardware: Hardware) -> Prediction:
    """Return what a plan costs.

    Args:
        plan: what runs.
        inputs: names of the inputs that hold data, for samples and tokens per second.
        hardware: the profile to price with.

    Raises:
        PlanError: no profile describes the devices.
    """
    types = [port.type for port in plan.inputs if port.name in inputs]
    batches = [type.shape[0] for type in types if type.shape]
    words = [type for type in types if type.rank > 1 and not type.dtype.is_float]
    return Prediction(
        plan,
        hardware,
        predict_memory(plan, hardware),
        predict_timeline(plan, hardware),
        batches[0] if batches else 0,
        words[0].shape[0] * words[0].shape[1] if words else 0,
    )


def _lines(found: Prediction) -> Iterator[str]:
    figures = found.figures
    yield f"{found.plan.mesh!r}: {found.plan.mesh.size} devices of profile '{found.hardware.name}'"
    peak, capacity = format_bytes(found.memory.peak), found.memory.capacity
    where = f"at {figures['memory_peak_at']}"
    if capacity is None:
        yield _line("memory", f"{peak} on the fullest device, {where}")
    else:
        does = "fits" if found.memory.fits else "does not fit"
        yield _line("memory", f"{does}: {peak} of {format_bytes(capacity)}, {where}")
    parts = figures["memory_by_kind"].items()
    yield _line("", ", ".join(f"{kind} {format_bytes(n)}" for kind, n in parts if n))
    share = 100 * found.timeline.utilization
    yield _line("step", f"{format_seconds(found.timeline.seconds)}, {share:.1f} % of peak flops")
    for name in ("tokens", "samples"):
        rate = figures[f"{name}_per_second"]
        if rate is not None:
            yield _line(name, f"{rate:.4g} per second")
    if len(found.plan.stages) > 1:
        yield _line("bubble", f"{100 * found.timeline.bubble:.1f} %")
    yield _line("by axis", "bytes of a device, seconds, of which nothing hides")
    for axes, moved in figures["bytes_by_axis"].items():
        all_of_it = format_seconds(found.timeline.communication.get(axes, 0.0))
        exposed = format_seconds(found.timeline.exposed.get(axes, 0.0))
        yield _line("", f"{axes}: {format_bytes(moved)}, {all_of_it}, {exposed}")
    yield _line("most time", "collectives that take most, with their reasons")
    for number, (row, seconds) in enumerate(found.top, start=1):
        yield from _explain(number, row, seconds)
    yield from [] if found.plan.search is None else found.plan.search.lines()
    yield from (f"note: {note}" for note in found.plan.notes)


def _explain(number: int, row: Collective, seconds: float) -> Iterator[str]:
    place = " ".join(part for part in (row.scope, f"({row.source})" if row.source else "") if part)
    moves = f"{over(row)}{times_of(row)}, {format_bytes(row.bytes)}, {format_seconds(seconds)}"
    yield _line("", f"{number}. {moves}")
    yield _line("", f"   {row.phase}: {row.cause.value}" + (f" from {place}" if place else ""))
    yield _line("", f"   {row.cause.produced} -> {row.cause.required} for {row.cause.consumer}")


def _line(label: str, text: str) -> str:
    return f"  {label:<10} {text}".rstrip()
