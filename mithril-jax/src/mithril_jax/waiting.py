"""Waiting for what a CPU computes: a thread asks for a while before it sleeps.

The system takes tens of microseconds to wake a thread that sleeps until a computation has ended, on
a virtual machine above all: longer than a small op takes. Where asking was in vain, the next waits
sleep at once, so that what takes long has the processor for itself.
"""

from __future__ import annotations

from typing import Any

ASKS = 800
"""How often an array is asked whether it is there: for some 60 µs."""
RESTS = 32
"""After asking in vain, so many waits do without."""


class Waiting:
    """Waits for arrays of one CPU device.

    Attributes:
        rests: waits to come that do not ask.
    """

    def __init__(self) -> None:
        self.rests = 0

    def ask(self, array: Any) -> None:
        """Return once an array is there, or when it is time to sleep.

        Args:
            array: the last one that is waited for.

        Raises:
            RuntimeError: the array was deleted.
        """
        if self.rests:
            self.rests -= 1
            return
        for _ in range(ASKS):
            if array.is_ready():
                return
        self.rests = RESTS


__all__ = ["Waiting"]
