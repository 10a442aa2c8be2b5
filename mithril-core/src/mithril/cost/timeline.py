"""Runs a schedule on paper: when every action starts, what is idle, and what is held in memory.

An action starts when its device has done the one before and what it needs is there. The *makespan*
is the time from the first start to the last end, so that it holds the flush at the end of a step.
The *bubble* is the share of all devices' time in it that is idle. Activations are counted as
micro-batches of a stage: from the start of the forward to the end of the backward, of which a split
one ends with the gradients of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mithril.errors import PlanError
from mithril.plan.schedule import Action, Schedule, Work


@dataclass(frozen=True, slots=True)
class Costs:
    """How long the work of one stage takes for one micro-batch, in any unit.

    Args:
        forward: the forward.
        input_gradient: the half of the backward that the stage before waits for.
        weight_gradient: the other half.
        transfer: until a result is on another device.

    Raises:
        PlanError: a time is below 0 or not finite, or all work takes none.
    """

    forward: float = 1.0
    input_gradient: float = 1.0
    weight_gradient: float = 1.0
    transfer: float = 0.0

    def __post_init__(self) -> None:
        work = (self.forward, self.input_gradient, self.weight_gradient)
        if not all(0 <= x < math.inf for x in (*work, self.transfer)) or not any(work):
            raise PlanError(
                f"costs {(*work, self.transfer)} are not times of at least 0, some work above 0; "
                f"give forward, input gradient, weight gradient and transfer, such as 1, 1, 1, 0.1"
            )

    def of(self, work: Work) -> float:
        """Return how long a piece of work takes."""
        if work == Work.backward:
            return self.input_gradient + self.weight_gradient
        if work == Work.forward:
            return self.forward
        return self.input_gradient if work == Work.input_gradient else self.weight_gradient


@dataclass(frozen=True, slots=True)
class Timeline:
    """A schedule that was run on paper.

    Args:
        schedule: what was run.
        starts: when each action starts.
        ends: when each action ends.
        peaks: how many micro-batches of its stages each device holds activations of, at most.
    """

    schedule: Schedule
    starts: Mapping[Action, float]
    ends: Mapping[Action, float]
    peaks: tuple[int, ...]

    @property
    def makespan(self) -> float:
        """The time from the first start to the last end."""
        return max(self.ends.values(), default=0.0) - min(self.starts.values(), default=0.0)

    @property
    def bubble(self) -> float:
        """The share of the devices' time that is idle."""
        whole = self.makespan * len(self.schedule.rows)
        busy = sum(self.ends[a] - self.starts[a] for a in self.starts)
        return 1 - busy / whole if whole else 0.0


def _needs(action: Action, stages: int, actions: Container[Action]) -> list[Action]:
    stage, work, m = action.stage, action.work, action.microbatch
    if work == Work.forward:
        return [Action(stage - 1, work, m)] if stage else []
    if work == Work.weight_gradient:
        return [Action(stage, Work.input_gradient, m)]
    found = [Action(stage, Work.forward, m)]
    if stage + 1 < stages:
        half = Action(stage + 1, Work.input_gradient, m)
        found.append(half if half in actions else Action(stage + 1, Work.backward, m))
    return found


def simulate(schedule: Schedule, costs: Costs | Sequence[Costs] = Costs()) -> Timeline:
    """Return when everything happens.

    Args:
        schedule: what is run; `check` says whether it is whole.
        costs: of every stage, or one for all.

    Raises:
        PlanError: devices wait for each other for ever, or not every stage has costs.

    >>> from mithril.plan.schedule import read_table
    >>> rows = ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]
    >>> round(simulate(read_table("mine", rows)).bubble, 3)
    0.333
    """
    stages, devices = schedule.stages, schedule.devices
    prices = [costs] * stages if isinstance(costs, Costs) else list(costs)
    if len(prices) != stages:
        raise PlanError(
            f"schedule '{schedule.name}' has {stages} stages and costs of {len(prices)}; give one "
            f"for each"
        )
    known = set(schedule.actions)
    wanted = {a: _needs(a, stages, known) for a in schedule.actions}
    starts: dict[Action, float] = {}
    ends: dict[Action, float] = {}
    at, free = [0] * len(schedule.rows), [0.0] * len(schedule.rows)
    while len(ends) < len(wanted):
        before = len(ends)
        for device, row in enumerate(schedule.rows):
            while at[device] < len(row) and all(w in ends for w in wanted[row[at[device]]]):
                action = row[at[device]]
                there = [
                    ends[w] + (prices[w.stage].transfer if devices[w.stage] != device else 0.0)
                    for w in wanted[action]
                ]
                starts[action] = max([free[device], *there])
                ends[action] = starts[action] + prices[action.stage].of(action.work)
                free[device] = ends[action]
                at[device] += 1
        if len(ends) == before:
            raise _deadlock_error(schedule, at, ends, wanted)
    peaks = (max(count_held(row), default=0) for row in schedule.rows)
    return Timeline(schedule, starts, ends, tuple(peaks))


def _deadlock_error(
    schedule: Schedule,
    at: Sequence[int],
    ends: Mapping[Action, float],
    wanted: Mapping[Action, Sequence[Action]],
) -> PlanError:
    device = next(d for d, row in enumerate(schedule.rows) if at[d] < len(row))
    action = schedule.rows[device][at[device]]
    missing = next(w for w in wanted[action] if w not in ends)
    return PlanError(
        f"schedule '{schedule.name}' never gets to {action} on device {device}; it needs "
        f"{missing}, which comes later or waits itself; put {missing} first"
    )


def count_held(row: Sequence[Action]) -> Iterator[int]:
    """Yield how many activations a device holds once each of its actions has started."""
    count = 0
    for action in row:
        count += action.work == Work.forward
        yield count
        count -= action.work in (Work.backward, Work.weight_gradient)
