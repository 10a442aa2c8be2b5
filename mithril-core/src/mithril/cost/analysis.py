"""Analysis: what memory and time a plan takes, on the hardware that priced it or another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields

from mithril.cost.hardware import Hardware
from mithril.cost.memory import PlanMemory, predict_memory
from mithril.cost.plan_timeline import PlanTimeline, predict_timeline
from mithril.cost.profiles import as_hardware
from mithril.plan import Plan


class _Known:
    """The last answer: the passes of the compiler ask for the memory of one plan several times."""

    def __init__(self) -> None:
        self._last: tuple[Plan, frozenset[str], PlanMemory] | None = None

    def find(self, plan: Plan, hardware: Hardware, donated: frozenset[str]) -> PlanMemory:
        """Return what each device holds while a plan runs; always for the same hardware."""
        if self._last is not None:
            known, given_up, memory = self._last
            if donated == given_up and _differ_in_notes(plan, known):
                return memory
        memory = predict_memory(plan, hardware, donated)
        self._last = plan, donated, memory
        return memory


def _differ_in_notes(one: Plan, other: Plan) -> bool:
    """Return whether plans are the same but for their notes."""
    names = (item.name for item in fields(Plan) if item.name != "notes")
    return all(getattr(one, name) is getattr(other, name) for name in names)


@dataclass(frozen=True, slots=True)
class HardwareAnalyst:
    """Reads memory and time off plans; see `mithril.plan.Analyst`.

    Args:
        hardware: what is assumed where a caller names none.
    """

    hardware: Hardware
    _known: _Known = field(default_factory=_Known, compare=False, repr=False)

    def predict_memory(
        self, plan: Plan, hardware: Hardware | str | None, donated: Collection[str]
    ) -> PlanMemory:
        """Return what each device holds while the plan runs; see `Plan.memory`."""
        if hardware is not None:
            return predict_memory(plan, self._choose(hardware), donated)
        return self._known.find(plan, self.hardware, frozenset(donated))

    def predict_timeline(self, plan: Plan, hardware: Hardware | str | None) -> PlanTimeline:
        """Return when each device computes and communicates; see `Plan.timeline`."""
        return predict_timeline(plan, self._choose(hardware))

    def _choose(self, hardware: Hardware | str | None) -> Hardware:
        """Return a profile with what carries the data, and how programs run, on this backend."""
        return self.hardware if hardware is None else as_hardware(hardware).on(self.hardware)
