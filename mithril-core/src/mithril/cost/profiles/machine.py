"""This machine, as far as figures that were measured on it depend on it."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


@cache
def describe_machine() -> str:
    """Return the processor of this machine and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_find_processor()}, {cores} cores"


def _find_processor() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
