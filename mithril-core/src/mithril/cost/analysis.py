"""Analysis: what memory and time a plan takes, on the hardware that priced it or another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields

from mithril.cost.hardware import Hardware
from mithril.cost.memory import PlanMemory, predict_memory
from mithril.cost.plan_timeline import PlanTimeline, predict_timeline
from mithril.cost.profiles import as_hardware
from mithril.plan import Plan


@dataclass(slots=True, eq=False)
class HardwareAnalyst:
    """Reads memory and time off plans; see `mithril.plan.Analyst`.

    The last answer about memory is kept: passes of the compiler ask for that of one plan several
    times.

    Args:
        hardware: what is assumed where a caller names none.
    """

    hardware: Hardware
    _last: tuple[Plan, frozenset[str], PlanMemory] | None = field(
        default=None, init=False, repr=False
    )

    def predict_memory(
        self, plan: Plan, hardware: Hardware | str | None, donated: Collection[str]
    ) -> PlanMemory:
        """Return what each device holds while the plan runs; see `Plan.memory`."""
        if hardware is not None:
            return predict_memory(plan, self._choose(hardware), donated)
        last, given_up = self._last, frozenset(donated)
        if last is not None and given_up == last[1] and _differ_in_notes_alone(plan, last[0]):
            return last[2]
        memory = predict_memory(plan, self.hardware, given_up)
        self._last = plan, given_up, memory
        return memory

    def predict_timeline(self, plan: Plan, hardware: Hardware | str | None) -> PlanTimeline:
        """Return when each device computes and communicates; see `Plan.timeline`."""
        return predict_timeline(plan, self._choose(hardware))

    def _choose(self, hardware: Hardware | str | None) -> Hardware:
        """Return a profile with what carries the data, and how programs run, on this backend."""
        return self.hardware if hardware is None else as_hardware(hardware).on(self.hardware)


def _differ_in_notes_alone(one: Plan, other: Plan) -> bool:
    names = (item.name for item in fields(Plan) if item.name != "notes")
    return all(getattr(one, name) is getattr(other, name) for name in names)
