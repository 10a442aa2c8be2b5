"""Where memory is cut: at lines of a processor's cache."""

from __future__ import annotations

ALIGNMENT = 64
"""Bytes of a line, of which offsets in a block of memory, and sizes there, are multiples."""


def align(size: int) -> int:
    """Return a size rounded up to whole lines of a cache.

    >>> align(1), align(64), align(65)
    (64, 64, 128)
    """
    return -(-size // ALIGNMENT) * ALIGNMENT
