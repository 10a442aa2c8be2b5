"""SKELETON: helper 'timeline' builds this."""

from __future__ import annotations

from dataclasses import dataclass

from mithril.cost.hardware import Hardware
from mithril.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanTimeline:
    """SKELETON."""


def predict_timeline(plan: Plan, hardware: Hardware) -> PlanTimeline:
    """SKELETON."""
    raise NotImplementedError
