"""Measured programs: each segment is computed before the next one is built, and memory is read."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import mlx.core as mx
from mithril.spi import (
    EngineProfiler,
    Executable,
    MemoryUse,
    Observer,
    Recorder,
    run_marked,
)

from mithril_mlx.lazy import Shards

HOW = "get_peak_memory of MLX, of the whole process"
_TRIALS = 256
"""So many arrays are computed to see what one costs."""


class MeasuredExecutable:
    """A program with marks.

    Args:
        execute: builds and computes it.
        devices: flat indices of those of this process that it runs on.
        here: those of this process, whose memory is one.
    """

    def __init__(
        self, execute: Executable, devices: tuple[int, ...], here: tuple[int, ...]
    ) -> None:
        self._execute = execute
        self._devices = devices
        self._here = here

    def __call__(self, inputs: Sequence[Shards], observe: Observer | None = None) -> list[Shards]:
        """Run once, and tell the recorder."""
        assert isinstance(observe, Recorder), "who runs a measured program records it"
        mx.eval(list(inputs))
        if observe.counts_memory:
            mx.reset_peak_memory()
        results = run_marked(self._execute, inputs, observe, self._devices)
        mx.eval(results)
        if observe.counts_memory:
            observe.memory.append(MemoryUse(self._here, mx.get_peak_memory(), HOW))
        return results


class MLXProfiler(EngineProfiler):
    """Nothing is open beside programs; a mark computes what there is, and so waits for it."""

    def measure_mark(self) -> float:
        """Return the seconds of a mark and of the computation of a small array."""
        x = mx.zeros(1)
        mx.eval(x)
        start = perf_counter()
        for _ in range(_TRIALS):
            x = x + 1
            mx.eval(x)
        return super().measure_mark() + (perf_counter() - start) / _TRIALS
