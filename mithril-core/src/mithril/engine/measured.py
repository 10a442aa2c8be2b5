"""Measured programs in lockstep: the same program, written with marks, told to a recorder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from types import ModuleType
from typing import Any

from mithril.engine.arena import HostLayout
from mithril.engine.kernels import Kernel
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.marks import Marks
from mithril.engine.protocol import Executable, Observer
from mithril.engine.recording import ArrayTally, MemoryUse, Recorder
from mithril.plan import Program

HOW = "arrays of NumPy, counted while they live"
"""How memory is measured."""


class MeasuredLockstep:
    """A program on all devices in turn that says how long its segments take.

    Args:
        program: what runs.
        kernels: kernel factories by op name.
        xp: the array namespace, whose arrays know their `nbytes` and `base`.
        layout: where values lie in arenas, if they do.
    """

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, Kernel],
        xp: ModuleType,
        layout: HostLayout | None = None,
    ) -> None:
        self._made = program, kernels, xp
        self._layout = layout
        self._devices = program.mesh.flat

    @cached_property
    def _timed(self) -> LockstepExecutable:
        return LockstepExecutable(*self._made, Marks(), self._layout)

    @cached_property
    def _counting(self) -> LockstepExecutable:
        return LockstepExecutable(*self._made, Marks(counts_memory=True), self._layout)

    def __call__(
        self, inputs: Sequence[Sequence[Any]], observe: Observer | None = None
    ) -> list[list[Any]]:
        """Run once, and tell the recorder."""
        assert isinstance(observe, Recorder), "who runs a measured program records it"
        if not observe.counts_memory:
            return run_marked(self._timed, inputs, observe, self._devices)
        if observe.tally is None:
            tally = observe.tally = ArrayTally()
            observe.later.append(partial(_tell_peaks, observe, tally))
        return run_marked(self._counting, inputs, observe, self._devices)


def _tell_peaks(recorder: Recorder, tally: ArrayTally) -> None:
    """Tell a recorder the most that each device held, in all programs of its run."""
    found = tally.find_peaks()
    recorder.memory = [MemoryUse((device,), peak, HOW) for device, peak in found.items()]


def run_marked(
    execute: Executable, inputs: Sequence[Any], observe: Recorder, devices: tuple[int, ...]
) -> list[Any]:
    """Run a program with marks, and have the recorder collect its times."""
    results = execute(inputs, observe)
    observe.collect(devices)
    return results
