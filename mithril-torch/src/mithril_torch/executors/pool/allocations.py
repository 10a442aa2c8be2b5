"""Counts the memory that PyTorch allocates while a program runs, and the most at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import RecordScope, _ExperimentalConfig
from torch.profiler import ProfilerActivity

_PROFILER: Any = torch.autograd  # whose types do not say what it exports
MEMORY = "[memory]"
"""The name of the events that PyTorch's profiler has for allocations."""
LOG_LEVEL = "KINETO_LOG_LEVEL"
QUIET = "99"


def is_profiled() -> bool:
    """Return whether PyTorch's profiler runs, and allocations cannot be counted besides."""
    return bool(_PROFILER._profiler_enabled())


@contextmanager
def count_allocations(device: str, inputs: Sequence[torch.Tensor | None]) -> Iterator[list[int]]:
    """Return a context that leaves in a list the most bytes in use at once, inputs included.

    On a CPU allocations are told by PyTorch's profiler, which records nothing else meanwhile; on a
    GPU the allocator counts by itself.

    Args:
        device: where the program computes.
        inputs: of the program.
    """
    peak: list[int] = []
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak.append(torch.cuda.max_memory_allocated())
        return
    held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in _present(inputs)}
    _start()
    try:
        yield peak
    finally:
        result = _PROFILER._disable_profiler()
    now = most = 0
    for event in result.events():
        if event.name() == MEMORY:
            now += event.nbytes()
            most = max(most, now)
    peak.append(sum(held.values()) + most)


def _start() -> None:
    """Have PyTorch's profiler tell of allocations and of nothing else, without a word."""
    state = _PROFILER.ProfilerState.KINETO
    config = _PROFILER.ProfilerConfig(
        state, False, True, False, False, False, _ExperimentalConfig()
    )
    before = os.environ.get(LOG_LEVEL)
    os.environ[LOG_LEVEL] = before or QUIET  # it is read when the profiler is first used
    try:
        _PROFILER._prepare_profiler(config, {ProfilerActivity.CPU})
        _PROFILER._enable_profiler(config, {ProfilerActivity.CPU}, {RecordScope.USER_SCOPE})
    finally:
        if before is None:
            del os.environ[LOG_LEVEL]


def _present(inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [x for x in inputs if x is not None]
