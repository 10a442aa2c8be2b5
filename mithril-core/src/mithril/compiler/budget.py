"""Memory budgets: from parts and a budget to the fastest plan that keeps to it.

Local programs were laid out once. For each choice of what is computed again the second half of
planning runs anew, and the finished plan says what devices hold and how long a step takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from mithril.cost import Hardware, Target, predict_memory
from mithril.cost.kernels import OpCosts
from mithril.cost.simulate_plan import simulate_plan
from mithril.errors import PlanError, listing
from mithril.ir import Value
from mithril.partition.partition import Partitioned
from mithril.partition.recompute import (
    Recomputed,
    describe_policy,
    drop_in_layers,
    rewrite_program,
)
from mithril.partition.recompute.asked import ALL, LAYER, SELECTIVE, Recompute
from mithril.partition.recompute.choose import Choice, Measured, choose_cheap, choose_within
from mithril.partition.recompute.kept import find_gathered_axes, find_kept
from mithril.partition.recompute.sections import LocalPart
from mithril.plan import Plan, Program
from mithril.plan.policy import MemoryPolicy
from mithril.plan.schedule import Schedule, Work

CHEAP = "costs next to no time to compute again"
FASTEST = "is part of the fastest choice within the budget"


def plan_within(
    parts: Partitioned,
    asked: Recompute,
    finish: Callable[[Plan], Plan],
    wait: Callable[[Plan], Plan],
    target: Target,
    donated: Collection[str],
) -> Plan:
    """Return the fastest plan that keeps to a budget.

    Args:
        parts: with everything kept.
        asked: the budget, and what may not be repeated.
        finish: the passes over the programs of a plan.
        wait: returns a plan whose collectives are waited for where they are issued, which later
            passes fall back on if nothing else keeps to the budget.
        target: where it will run.
        donated: inputs that are given up.

    Raises:
        PlanError: no plan keeps to the budget.
    """
    trial = _Trial(parts, finish, wait, target.hardware, frozenset(donated))
    keeping = max(trial.measure(frozenset()).peaks)
    if asked.budget == SELECTIVE:
        limit, choice = None, choose_cheap(list(_list_parts(parts, asked, target)), trial.measure)
    else:
        assert not isinstance(asked.budget, str), "other words are no budget"
        is_fraction = isinstance(asked.budget, float)
        limit = int(asked.budget * keeping) if is_fraction else int(asked.budget)
        trial, choice = _choose_fastest(trial, asked, target, limit)
    plan, found = trial.make(choice.dropped)
    why = CHEAP if limit is None else FASTEST
    policy = MemoryPolicy(
        asked.said,
        describe_policy(trial.programs, found, target.hardware, why),
        keeping,
        choice.seconds,
        limit,
        choice.bound,
        choice.curve,
        choice.bound_by,
    )
    return replace(plan, policy=policy, notes=(*plan.notes, *trial.notes))


def _choose_fastest(
    trial: _Trial, asked: Recompute, target: Target, limit: int
) -> tuple[_Trial, Choice]:
    """Return what is chosen within some bytes, and of which parts.

    What is gathered once for all micro-batches is in memory all the while. Where the budget forces
    something to be computed again, it is also tried to gather again, and the faster one is taken.

    Raises:
        PlanError: no plan keeps to the budget.
    """
    again = _find_axes(trial.parts, asked)
    choices: list[tuple[_Trial, Choice]] = []
    refusal: PlanError | None = None
    for one in (trial, trial.gathering_again(again)) if again else (trial,):
        try:
            choice = choose_within(
                list(_list_parts(one.parts, asked, target)), limit, one.measure, asked.said
            )
        except PlanError as refused:
            refusal = refused  # the last one knows the least that is possible
            continue
        choices.append((one, choice.later_by(one.count_seconds(trial))))
        if not choice.dropped:
            break
    if not choices:
        assert refusal is not None, "something was tried"
        raise refusal
    best, choice = min(choices, key=lambda item: item[1].seconds)
    return best, choice.beside([other for one, other in choices if one is not best])


def _find_axes(parts: Partitioned, asked: Recompute) -> frozenset[str]:
    """Return the axes over which parameters are gathered once that may be gathered again."""
    if parts.placement.microbatches == 1:
        return frozenset()
    found = frozenset[str]().union(*(find_gathered_axes(local.program) for local in parts.locals))
    return found - asked.kept_axes - parts.placement.gathers_again


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Makes plans that compute values again, and measures them.

    Args:
        parts: with everything kept.
        finish: the passes over the programs of a plan.
        wait: returns a plan whose collectives are waited for at once.
        hardware: the profile to price with.
        donated: inputs that are given up.
        notes: what else than computing again is done for the budget.
    """

    parts: Partitioned
    finish: Callable[[Plan], Plan]
    wait: Callable[[Plan], Plan]
    hardware: Hardware
    donated: frozenset[str]
    notes: tuple[str, ...] = ()
    _costs: OpCosts = field(default_factory=OpCosts)
    _made: dict[frozenset[Value], tuple[Plan, list[Recomputed]]] = field(default_factory=dict)

    def gathering_again(self, axes: frozenset[str]) -> _Trial:
        """Return the same with parameters gathered over more axes in every run that needs them."""
        known = self.parts.placement.gathers_again
        note = (
            f"what is gathered over {listing(sorted(axes))} is gathered again by every run of a "
            f"program that needs it, so that it is not held for all micro-batches"
        )
        parts = self.parts.with_gathers_again(known | axes)
        return replace(self, parts=parts, notes=(*self.notes, note), _made={})

    def count_seconds(self, other: _Trial) -> float:
        """Return how much longer a step takes than another trial's, if both keep everything."""
        return self.measure(frozenset()).seconds - other.measure(frozenset()).seconds

    @property
    def programs(self) -> list[Program]:
        """The local programs, with everything kept."""
        return [local.program for local in self.parts.locals]

    def make(self, dropped: frozenset[Value]) -> tuple[Plan, list[Recomputed]]:
        """Return the plan that computes some values again, and what has become of its parts."""
        if dropped not in self._made:
            found = [rewrite_program(program, dropped) for program in self.programs]
            plan = self.parts.plan_with([item.program for item in found])
            self._made[dropped] = self.finish(plan), found
        return self._made[dropped]

    def measure(self, dropped: frozenset[Value]) -> Measured:
        """Return what that plan takes, with the less memory of the two that it may end with."""
        plan, _ = self.make(dropped)
        waiting = self.wait(plan)
        memory = min(
            (predict_memory(one, self.hardware, self.donated) for one in {plan: 0, waiting: 0}),
            key=lambda found: found.peak,
        )
        peaks = []
        for local in self.parts.locals:
            own = set(_find_devices(self.parts, local.part))
            peaks.append(max(row.peak for row in memory.rows if not own.isdisjoint(row.devices)))
        seconds = simulate_plan(plan, self.hardware, self._costs).seconds
        return Measured(tuple(peaks), seconds, memory.fullest)


def _find_devices(parts: Partitioned, part: int) -> tuple[int, ...]:
    return parts.placement.parts[part].mesh.flat


def _list_parts(parts: Partitioned, asked: Recompute, target: Target) -> Iterator[LocalPart]:
    """Yield the local programs with how often what they keep is there."""
    placement = parts.placement
    for local in parts.locals:
        part = placement.parts[local.part]
        in_flight = 1
        if placement.schedule is not None and part.stage is not None:
            in_flight = _count_in_flight(placement.schedule, part.stage)
        yield LocalPart(
            local.program,
            target.within(part.mesh).hardware,
            _find_devices(parts, local.part),
            in_flight,
            placement.microbatches,
            find_kept(local.program, asked),
            asked.granularity == LAYER,
            drop_in_layers(local.program, replace(asked, budget=ALL)),
        )


def _count_in_flight(schedule: Schedule, stage: int) -> int:
    """Return for how many micro-batches a stage has run its forward but no backward, at most."""
    running, most = 0, 1
    for action in schedule.actions:
        if action.stage != stage:
            continue
        if action.work == Work.forward:
            running += 1
            most = max(most, running)
        elif action.work in (Work.backward, Work.weight_gradient):
            running -= 1
    return most


__all__ = ["plan_within"]
