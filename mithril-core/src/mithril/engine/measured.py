"""Measured programs in lockstep: the same program, written with marks, told to a recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from mithril.engine.marks import Marks
from mithril.engine.protocol import Executable, Observer
from mithril.engine.recording import ArrayTally, MemoryUse, Recorder

HOW = "arrays of NumPy, counted while they live"
"""How memory is measured."""


class MeasuredLockstep:
    """A program on all devices in turn that says how long its segments take.

    Args:
        lower: returns the program with marks; its arrays know their `nbytes` and `base`.
        devices: flat indices of those that it runs on.
    """

    def __init__(self, lower: Callable[[Marks], Executable], devices: tuple[int, ...]) -> None:
        self._lower = lower
        self._devices = devices

    @cached_property
    def _timed(self) -> Executable:
        return self._lower(Marks())

    @cached_property
    def _counting(self) -> Executable:
        return self._lower(Marks(counts_memory=True))

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
