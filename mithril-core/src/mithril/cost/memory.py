"""SKELETON: helper 'memory' builds this."""

from __future__ import annotations

from dataclasses import dataclass

from mithril.cost.hardware import Hardware
from mithril.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """SKELETON."""


def predict_memory(plan: Plan, hardware: Hardware) -> PlanMemory:
    """SKELETON."""
    raise NotImplementedError
