"""Ctrl-C while workers compute: it waits for what they run, so that no array is lost.

Workers that are ended take all arrays with them, and a message that is half read cannot be gone on
with. So an interrupt takes effect between two messages. A second one says what a third one costs.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Interrupts:
    """Counts the interrupts of one exchange with the workers.

    Args:
        describe: returns what to tell the user at the first, and at the second interrupt.
    """

    describe: Callable[[int], str]
    count: int = 0

    @property
    def is_enough(self) -> bool:
        """Whether the user wants the workers to be ended, whatever is lost."""
        return self.count > 2

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take an interrupt: tell what it does, and give up at the third one.

        Raises:
            KeyboardInterrupt: it is the third one.
        """
        self.count += 1
        if self.is_enough:
            raise KeyboardInterrupt
        print(f"mithril: {self.describe(self.count)}", file=sys.stderr, flush=True)


@contextmanager
def hold_back(describe: Callable[[int], str]) -> Iterator[Interrupts]:
    """Hold interrupts back as long as the context lasts; then they do what they always do.

    In a call that was given arrays for good that is to wait for its end (`mithril.runtime`).

    Python gives signals to its main thread only. One that is ignored, or ends the process without
    Python, stays so.
    """
    interrupts = Interrupts(describe)
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.receive)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupts.count > 0 and not interrupts.is_enough:
            before(signal.SIGINT, None)  # without a frame: the user has been told
