"""Whether an array is nobody's but the kernel's that got it, so that it may write into it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def is_alone(x: Any) -> bool:
    """Return whether nobody but its handle has an operand; called by a kernel, of a local name.

    A view, an array that a user read, or another handle would each be one reference more: NumPy
    finds out in the same way whether it may reuse a temporary.
    """
    count = _count_references(x)  # its flags, once read, refer to it, too
    return bool(count <= _HELD and x.flags.owndata and x.flags.writeable)


def _count_references(x: Any) -> int:
    return sys.getrefcount(x)


def _count_alone() -> int:
    """Return how often an array is referred to that its handle alone has, counted as above."""
    handle = [np.empty(1)]
    x = handle[0]
    return _count_in_kernel(x, handle)


def _count_in_kernel(x: Any, *others: Any) -> int:
    def count(x: Any) -> int:
        return _count_references(x)

    return count(x)


_HELD = _count_alone()


__all__ = ["is_alone"]
