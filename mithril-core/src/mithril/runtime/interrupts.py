"""Ctrl-C while a call computes that was given arrays for good: the caller gets the results first.

In `state, metrics = step(state, batch)` an exception leaves the caller with the old state, which is
given up, and drops the new one. So an interrupt waits until the call has returned and its results
have names: it takes effect before the next such call, or a moment later. A second one does not
wait.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType

from mithril.runtime.processes import find_place

MOMENT = 0.1
"""Seconds after the end of a call by which its results have names."""


class _Interrupts:
    """What becomes of Ctrl-C; there is one for the process.

    `depth` counts the calls under way, one in another, and `count` the interrupts that waited;
    `is_waiting` says that one does, and `is_sent` that it is on its way once more.
    """

    def __init__(self) -> None:
        self.depth = self.count = 0
        self.ended = -MOMENT
        self.is_waiting = self.is_sent = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take an interrupt; without a frame it comes from an engine, which has told the user.

        Raises:
            KeyboardInterrupt: it has waited, it is the second one, or there is nothing to wait for.
        """
        was_sent, self.is_sent = self.is_sent, False
        if was_sent and (self.depth > 0 or not self.is_waiting):
            return  # the next call was faster
        is_busy = self.depth > 0 or time.monotonic() - self.ended < MOMENT
        if self.is_waiting or not is_busy:
            self.is_waiting = False
            raise KeyboardInterrupt
        self.is_waiting = True
        self.count += 1
        if self.depth == 0:
            self.deliver_soon()
        elif frame is not None:
            text = (
                "mithril: Ctrl-C waits for the results of this call, which was given arrays for "
                "good; press it again to break it off, and lose them"
            )
            print(text, file=sys.stderr, flush=True)

    def deliver_soon(self) -> None:
        """Interrupt the main thread a moment later, whatever it does then."""
        threading.Thread(target=self._deliver, args=(self.count,), daemon=True).start()

    def _deliver(self, count: int) -> None:
        time.sleep(MOMENT)
        main = threading.main_thread().ident
        if self.is_waiting and self.count == count and main is not None:
            self.is_sent = True
            with suppress(ProcessLookupError):  # the main thread has come to its end
                signal.pthread_kill(main, signal.SIGINT)


_interrupts = _Interrupts()
_receive = _interrupts.receive


class HeldInterrupts:
    """The part of a call in which Ctrl-C waits for the results, which are all that is left.

    It does nothing outside of the main thread, which alone hears of Ctrl-C, under a handler of the
    user's own, and in a job of several processes, which its launcher ends. The handler stays: it
    does what Python's does, but for a moment after a call.

    Args:
        is_needed: whether arrays are given up.

    Raises:
        KeyboardInterrupt: at the entry, one has waited until now; at the end, the call failed.
    """

    __slots__ = ("_is_holding", "_is_needed")

    def __init__(self, is_needed: bool = True) -> None:
        self._is_needed = is_needed
        self._is_holding = False

    def __enter__(self) -> None:
        if not self._is_needed or threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler and find_place()[1] == 1:
            signal.signal(signal.SIGINT, _receive)
        elif handler is not _receive:
            return
        if _interrupts.is_waiting and _interrupts.depth == 0:
            _interrupts.is_waiting = False
            raise KeyboardInterrupt
        _interrupts.depth += 1
        self._is_holding = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if not self._is_holding:
            return
        _interrupts.ended = time.monotonic()
        _interrupts.depth -= 1
        if _interrupts.depth > 0 or not _interrupts.is_waiting:
            return
        if kind is None:
            _interrupts.deliver_soon()
            return
        _interrupts.is_waiting = False
        if not issubclass(kind, KeyboardInterrupt):
            raise KeyboardInterrupt


__all__ = ["HeldInterrupts"]
