"""Analysis: what memory and time a plan takes, on the hardware that priced it or another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mithril.cost.hardware import Hardware
from mithril.cost.memory import PlanMemory, predict_memory
from mithril.cost.plan_timeline import PlanTimeline, predict_timeline
from mithril.cost.profiles import as_hardware
from mithril.plan import Plan


@dataclass(frozen=True, slots=True)
class HardwareAnalyst:
    """Reads memory and time off plans; see `mithril.plan.Analyst`.

    Args:
        hardware: what is assumed where a caller names none.
    """

    hardware: Hardware

    def predict_memory(
        self, plan: Plan, hardware: Hardware | str | None, donated: Collection[str]
    ) -> PlanMemory:
        """Return what each device holds while the plan runs; see `Plan.memory`."""
        return predict_memory(plan, self._choose(hardware), donated)

    def predict_timeline(self, plan: Plan, hardware: Hardware | str | None) -> PlanTimeline:
        """Return when each device computes and communicates; see `Plan.timeline`."""
        return predict_timeline(plan, self._choose(hardware))

    def _choose(self, hardware: Hardware | str | None) -> Hardware:
        """Return a profile with what carries the data, and how programs run, on this backend."""
        return self.hardware if hardware is None else as_hardware(hardware).on(self.hardware)
