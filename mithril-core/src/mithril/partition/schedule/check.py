"""Whether a schedule does all of the work once, in an order in which it can be done."""

from __future__ import annotations

from collections import Counter

from mithril.cost.timeline import Timeline, count_held, simulate
from mithril.errors import PlanError
from mithril.plan.schedule import HALVES, Action, Schedule, Work


def check(
    schedule: Schedule, stages: int, microbatches: int, most_held: int | None = None
) -> Timeline:
    """Return how a schedule runs with equal costs, if it is a legal one.

    Args:
        schedule: one that was made by name, or a user's table.
        stages: how many stages the model has.
        microbatches: how many micro-batches a batch has.
        most_held: how many micro-batches of its stages a device may hold activations of.

    Raises:
        PlanError: an action is missing, superfluous or done twice, stands on the device of another
            stage, can never start, or more is held than may be. Named is the first such action.
    """
    _check_devices(schedule)
    _check_whole(schedule, stages, microbatches)
    timeline = simulate(schedule)
    if most_held is not None:
        _check_held(timeline, most_held)
    return timeline


def _check_devices(schedule: Schedule) -> None:
    idle = [device for device, row in enumerate(schedule.rows) if not row]
    if idle or not schedule.rows:
        raise PlanError(
            f"schedule '{schedule.name}' has nothing to do for device {idle[0] if idle else 0}; "
            f"give every device actions, and a table no empty line"
        )
    where: dict[int, int] = {}
    for device, row in enumerate(schedule.rows):
        for action in row:
            first = where.setdefault(action.stage, device)
            if first != device:
                raise PlanError(
                    f"schedule '{schedule.name}' has {action} on device {device}, and stage "
                    f"{action.stage} lives on device {first}; a stage has one device"
                )


def _check_whole(schedule: Schedule, stages: int, microbatches: int) -> None:
    counts = Counter(schedule.actions)
    for action in schedule.actions:
        if action.stage >= stages or action.microbatch >= microbatches:
            raise PlanError(
                f"schedule '{schedule.name}' has {action}; there are {stages} stages and "
                f"{microbatches} micro-batches, both counted from 0"
            )
        if counts[action] > 1:
            raise PlanError(
                f"schedule '{schedule.name}' has {action} {counts[action]} times; once is enough"
            )
    for stage in range(stages):
        for m in range(microbatches):
            done = {work for work in Work if Action(stage, work, m) in counts}
            _check_work(schedule.name, stage, m, done)


def _check_work(name: str, stage: int, m: int, done: set[Work]) -> None:
    halves = done.intersection(HALVES)
    if Work.backward in done and halves:
        raise PlanError(
            f"schedule '{name}' has {stage}B{m} and also a half of it; write B, or I and W"
        )
    wanted = {Work.forward, *(HALVES if halves else (Work.backward,))}
    for work in Work:
        if work in wanted - done:
            raise PlanError(
                f"schedule '{name}' lacks {Action(stage, work, m)}; every stage needs a forward "
                f"and a backward (B, or I and W) of every micro-batch"
            )


def _check_held(timeline: Timeline, most: int) -> None:
    schedule = timeline.schedule
    for device, row in enumerate(schedule.rows):
        for action, count in zip(row, count_held(row), strict=True):
            if count > most:
                raise PlanError(
                    f"schedule '{schedule.name}' holds activations of {count} micro-batches on "
                    f"device {device} at {action}; at most {most} may be held; start backwards "
                    f"earlier"
                )
