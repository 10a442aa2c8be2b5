"""`zero="auto"`: the stage of ZeRO with which a step is predicted to take the least time.

Stage 1 sends as many bytes as data parallelism does, of which the next forward hides some, and each
device updates its part alone; stage 2 sends no less than 1, and stage 3 no less than 2. So these
are for steps that do not fit otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from mithril.errors import PlanError
from mithril.runtime.training.step import TrainStep
from mithril.runtime.zero import NOTHING, STAGES, Zero
from mithril.units import format_seconds

AUTO = "auto"
ALIKE = 1.01
"""The ratio of predicted times up to which the lower stage is taken."""
Make = Callable[[Zero, bool], TrainStep]
"""Makes a step with a stage; the flag says whether it has to fit on the devices."""


def choose_stage(make: Make, last: Zero, *, knows_memory: bool) -> TrainStep:
    """Return the step that is predicted to be the fastest of those that fit.

    Args:
        make: makes the step.
        last: ZeRO's last stage, with the mesh axes over which a state is split.
        knows_memory: whether it is known what memory a device has.

    Raises:
        PlanError: with no stage there is a plan.
    """
    if last == NOTHING:
        return make(NOTHING, False)
    plain, *split = (Zero(stage, last.axes if stage else ()) for stage in STAGES)
    found: dict[int, tuple[float, TrainStep]] = {}
    refused: list[str] = []
    for zero in (plain, *split):
        if zero.stage > 1 and found:
            break
        try:
            step = make(zero, knows_memory)
        except PlanError as refusal:
            if zero == split[-1]:
                return make(zero, False)  # says what is lacking, as for a stage that was asked for
            refused.append(f"; with {zero.stage} there is none: {refusal}")
            continue
        found[zero.stage] = step.plan.timeline().seconds, step
    least = min(seconds for seconds, _ in found.values())
    taken = next(stage for stage, (seconds, _) in found.items() if seconds <= least * ALIKE)
    times = ", ".join(
        f"{format_seconds(seconds)} with {stage}" for stage, (seconds, _) in found.items()
    )
    step = found[taken][1]
    step.add_note(
        f"zero='auto' takes {taken}; a step is predicted to take {times}{''.join(refused)}"
    )
    return step


__all__ = ["AUTO", "choose_stage"]
