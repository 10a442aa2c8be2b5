"""Run a plan of several stages from one process, step by step in the order of its timetable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mithril.engine.protocol import Executable, Handle, Observer
from mithril.plan.plan import describe_send
from mithril.plan.timetable import Run, Timetable


class StagedExecutable:
    """A plan of several stages, lowered stage by stage.

    Nothing waits for a step to end: an engine whose computations run by themselves has those of
    different devices overlap. An observer is told what the devices of this process take part in.

    Args:
        table: the timetable.
        programs: a lowered program for each stage.
        transfers: for each transfer of the timetable what carries it out.
        observed: for each transfer whether a device of this process takes part in it.
        indices: for each index of the timetable a handle of the number.
    """

    def __init__(
        self,
        table: Timetable,
        programs: Sequence[Executable],
        transfers: Sequence[Callable[[Handle], Handle]],
        observed: Sequence[bool],
        indices: Sequence[Handle],
    ) -> None:
        self._table = table
        self._programs = programs
        self._transfers = transfers
        self._observed = observed
        self._indices = {i.slot: handle for i, handle in zip(table.indices, indices, strict=True)}
        self._dead = table.last_uses()

    def __call__(self, inputs: Sequence[Handle], observe: Observer | None = None) -> list[Handle]:
        """Run once; see `Executable`."""
        table = self._table
        slots: dict[int, Any] = dict(zip(table.given, inputs, strict=True))
        slots.update(self._indices)
        for step, dead in zip(table.steps, self._dead, strict=True):
            if isinstance(step, Run):
                results = self._programs[step.stage]([slots[s] for s in step.inputs], observe)
                slots.update(zip(step.outputs, results, strict=True))
            else:
                if observe is not None and self._observed[step.transfer]:
                    observe(*describe_send(table.transfers[step.transfer]))
                slots[step.target] = self._transfers[step.transfer](slots[step.source])
            for slot in dead:
                del slots[slot]
        return [slots[slot] for slot in table.made]
