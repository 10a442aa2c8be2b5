"""Run a plan of several stages from one process, step by step in the order of its timetable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mithril.engine.protocol import Executable, Handle, Observer
from mithril.engine.recording import Recorder, Segment
from mithril.ops.collective import SEND
from mithril.plan.plan import issue_transfer
from mithril.plan.timetable import Run, Send, Timetable


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
        is_timed: whether a transfer is over when its function returns, and may be timed.
    """

    def __init__(
        self,
        table: Timetable,
        programs: Sequence[Executable],
        transfers: Sequence[Callable[[Handle], Handle]],
        observed: Sequence[bool],
        indices: Sequence[Handle],
        is_timed: bool = True,
    ) -> None:
        self._is_timed = is_timed
        self._table = table
        self._programs = programs
        self._transfers = transfers
        self._observed = observed
        self._indices = {i.slot: handle for i, handle in zip(table.indices, indices, strict=True)}
        self._dead = table.last_uses()
        self._issued = [issue_transfer(transfer) for transfer in table.transfers]

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
                slots[step.target] = self._send(step, slots[step.source], observe)
            for slot in dead:
                del slots[slot]
        return [slots[slot] for slot in table.made]

    def _send(self, step: Send, value: Handle, observe: Observer | None) -> Handle:
        """Carry out a transfer, tell an observer of it, and a recorder how long it took."""
        carry_out, is_told = self._transfers[step.transfer], self._observed[step.transfer]
        if observe is None or not is_told:
            return carry_out(value)
        issued, transfer = self._issued[step.transfer], self._table.transfers[step.transfer]
        observe(issued)
        if not isinstance(observe, Recorder) or not self._is_timed:
            return carry_out(value)
        observe.mark(Segment(SEND, transfer.scope, transfer.phase, issued))
        made = carry_out(value)
        observe.mark(None)
        observe.collect(tuple(sorted(transfer.devices)))
        return made
