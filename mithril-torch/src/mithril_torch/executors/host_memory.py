"""Memory of the host that a program has freed stays with the process, for the next call.

PyTorch takes memory on a CPU from the C library. A step of training frees nearly all that it took,
and glibc gives the system back what is free at the end of its heap: the next step is handed fresh
pages, each of which costs a page fault and is filled with zeros first. This module imports no
framework.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_TRIM = 2**31 - 1
"""Bytes that may be free at the end of the heap: `mallopt` takes an `int`."""
LARGEST_IN_HEAP = 32 << 20
"""Bytes of what lies in the heap; glibc maps what is larger by itself, whatever it is told."""
MALLOC_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES",
)  # fmt: skip
"""Variables by which users tell glibc themselves; they are left what they say."""


@cache
def keep_freed_memory() -> bool:
    """Have this process keep what it frees, and return whether it does; only glibc can be told.

    Both thresholds are those that glibc would come to by itself with larger blocks (mallopt(3)).
    """
    if any(name in os.environ for name in MALLOC_VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or none to open
        return False
    in_heap = mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
    return bool(in_heap and mallopt(M_TRIM_THRESHOLD, LARGEST_TRIM))


__all__ = ["keep_freed_memory"]
