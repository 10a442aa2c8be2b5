"""Ctrl-C while a training runs: it ends after the step that is under way, whose state is whole.

A step may have given up the state before it, so nothing is left to go on with if it is broken off.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from mithril.runtime.interrupts import tell
from mithril.runtime.processes import find_place


@dataclass(slots=True)
class Interrupt:
    """Whether the user has asked for the end.

    Args:
        is_asked: it is so.
    """

    is_asked: bool = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take a Ctrl-C.

        Raises:
            KeyboardInterrupt: it is the second one.
        """
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        tell("training ends after this step; Ctrl-C again ends it at once")


@contextmanager
def watch_interrupts() -> Iterator[Interrupt]:
    """Take note of Ctrl-C as long as the context lasts.

    In a job of several processes, which would end after different steps, and outside of the main
    thread, which alone hears of it, Ctrl-C does what it always does. One that is ignored stays so.
    """
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(before) or find_place()[1] > 1:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt.receive)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
