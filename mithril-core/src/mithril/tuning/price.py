"""Prices: a strategy is planned for devices that are not there, and its plan says what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mithril.cost import PlanMemory
from mithril.errors import MithrilError
from mithril.plan import Plan
from mithril.runtime.backend import Backend
from mithril.runtime.compiling import compile
from mithril.runtime.strategy import Strategy
from mithril.runtime.training import train_step
from mithril.tuning.config import Figures
from mithril.tuning.model import TunedModel, unfit_plans


@dataclass(frozen=True, slots=True)
class Price(Figures):
    """What the plan of a strategy costs.

    Args:
        seconds: of a step.
        memory: bytes on the fullest device.
        bytes: that a device sends.
        fits: whether devices have so much memory.
    """

    memory: int
    bytes: int
    fits: bool


def price(tuned: TunedModel, strategy: Strategy) -> Price | str:
    """Return what the plan of a strategy costs, or why there is none.

    Args:
        tuned: the model.
        strategy: how it is split.
    """
    backend = tuned.open_backend(strategy.make_mesh())
    try:
        with unfit_plans():
            plan = make_plan(tuned, strategy, backend)
            seconds, memory = plan.timeline(tuned.hardware).seconds, plan.memory(tuned.hardware)
            if updates_apart(tuned, strategy):
                return _add_update(tuned, strategy, plan, seconds, memory)
    except MithrilError as error:  # a strategy that cannot be planned costs itself alone
        return f"{type(error).__name__}: {error}"
    sent = sum(plan.bytes_by_axis().values())
    return Price(seconds, memory.peak, sent, memory.fits is not False)


def updates_apart(tuned: TunedModel, strategy: Strategy) -> bool:
    """Return whether the update is priced apart: that of many stages takes long to plan."""
    return tuned.optimizer is not None and bool(strategy.stages) and tuned.backend is None


def _add_update(
    tuned: TunedModel, strategy: Strategy, plan: Plan, seconds: float, memory: PlanMemory
) -> Price:
    """Return what a plan of gradients costs with the update behind it."""
    kept = memory.fullest.parts["parameters"]
    replicas = math.prod(strategy.mesh[axis] for axis in strategy.zero_axes)
    updated = kept / replicas if strategy.zero in (1, 2) else kept
    peak = memory.peak + round(tuned.update.bytes * updated)
    fits = memory.capacity is None or peak <= memory.capacity
    total = seconds + tuned.update.seconds * updated
    return Price(total, peak, sum(plan.bytes_by_axis().values()), fits)


def make_plan(tuned: TunedModel, strategy: Strategy, backend: Backend) -> Plan:
    """Return the plan of a strategy on a backend of its mesh.

    Args:
        tuned: the model.
        strategy: how it is split.
        backend: where.
    """
    options: dict[str, Any] = {**tuned.options(), "partition_strategy": strategy}
    if tuned.optimizer is not None and not updates_apart(tuned, strategy):
        step = train_step(tuned.model, backend, tuned.optimizer, loss=tuned.loss, **options)
        return step.plan
    return compile(tuned.model, backend, inference=tuned.is_forward, **options).plan


__all__ = ["Price", "make_plan", "price"]
