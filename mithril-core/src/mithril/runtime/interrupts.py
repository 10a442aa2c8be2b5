"""Ctrl-C while a call computes that was given arrays for good: the caller gets the results first.

In `state, metrics = step(state, batch)` an exception leaves the caller with the old state, which is
given up, and drops the new one. So an interrupt waits until the call has returned and its results
have names: it takes effect before the next such call, or a moment later. A second one does not
wait.

Outside of such calls the handler of SIGINT is Python's own, which asyncio, trio and IPython look
for. It is put back neither before the caller has the results nor after the caller has gone on: by a
pending call of the interpreter. Python looks for signals, and then for pending calls, at the start
and at the end of calls, and not between the return of a call and the assignment of its result. So
at the first look after the end of ours an interrupt still meets our handler, and at the next one
Python's.
"""

from __future__ import annotations

import _thread
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from signal import SIGINT, default_int_handler
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple

from mithril.runtime.processes import find_place

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

DELIVERY_DELAY = 0.1
"""Seconds after the end of a call until an interrupt that waited takes effect."""

# What `signal` wraps around them, for its enums, would be felt in small steps.
_signal: Any = import_module("_signal")
_get_handler: Callable[[int], Any] = _signal.getsignal
_set_handler: Callable[[int, Any], Any] = _signal.signal


class _Interrupts:
    """What becomes of Ctrl-C; there is one for the process.

    `is_held` says that a call is under way, and `waiting` is there as long as an interrupt waits.
    While either is so, the handler is ours.
    """

    def __init__(self) -> None:
        self.is_held = False
        self.waiting: object | None = None

    def hold(self) -> bool:
        """Have interrupts wait from now on; return False where they do already, or must not.

        Raises:
            KeyboardInterrupt: one has waited until now.
        """
        if find_place()[1] > 1:
            return False
        handler = _get_handler(SIGINT)
        if handler is default_int_handler:
            self.is_held, self.waiting = True, None  # before there is a handler that reads it
            _set_handler(SIGINT, _receive)
            return True
        if handler is not _receive or self.is_held:
            return False
        if self.waiting is not None:
            self.end()
            raise KeyboardInterrupt
        self.is_held = True
        return True

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take an interrupt; without a frame it comes from an engine, which has told the user.

        Raises:
            KeyboardInterrupt: it is the second one, or the first one, which has waited.
        """
        if self.waiting is not None:
            self.end()
            raise KeyboardInterrupt
        if not self.is_held:  # the call has ended, and its results have no names yet
            self.deliver_soon()
            return
        self.waiting = object()
        if frame is not None:
            tell(
                "Ctrl-C waits for the results of this call, which was given arrays for good; "
                "press it again to break it off, and lose them"
            )

    def release(self) -> None:
        """End what `hold` began: the call returns."""
        self.is_held = False
        if self.waiting is None:
            _pending_calls[_put_back_later] = None
        else:
            self.deliver_soon()

    def fail(self, error: BaseException) -> None:
        """End what `hold` began: the call failed, and has no results.

        Raises:
            KeyboardInterrupt: one has waited.
        """
        if self.end():
            raise KeyboardInterrupt from error

    def end(self) -> bool:
        """Have nothing wait any more, and Python's handler back; return whether anything waited."""
        self.is_held = False
        self.put_back()
        has_waited, self.waiting = self.waiting is not None, None
        return has_waited

    def put_back(self) -> None:
        """Put Python's handler back, unless there is another one by now."""
        if _get_handler(SIGINT) is _receive:
            _set_handler(SIGINT, default_int_handler)

    def deliver_soon(self) -> None:
        """Interrupt the main thread a moment later, whatever it does then."""
        self.waiting = object()
        if _get_handler(SIGINT) is default_int_handler:  # which would raise for each one
            _set_handler(SIGINT, _receive)
        _thread.start_new_thread(self._deliver, (self.waiting,))

    def _deliver(self, waiting: object) -> None:
        time.sleep(DELIVERY_DELAY)
        main = threading.main_thread().ident
        if self.waiting is not waiting or main is None:
            return
        if _get_handler(SIGINT) is not _receive:  # another one is told, and settles it
            self.waiting = None
        with suppress(ProcessLookupError):  # the main thread has come to its end
            signal.pthread_kill(main, SIGINT)


_interrupts = _Interrupts()
_receive = _interrupts.receive


def tell(text: str) -> None:
    """Tell the user something from a handler of a signal.

    A thread writes it: the main one may be in the middle of a line, which Python lets nobody
    interrupt by another one.

    Args:
        text: what to tell.
    """
    line = f"mithril: {text}\n"
    _thread.start_new_thread(lambda: print(line, end="", file=sys.stderr, flush=True), ())


def _put_back(_: int | None) -> int:
    """Put Python's handler back once a call has returned, if no interrupt waits.

    Nothing may be raised here, and from the change on the handler may raise in any call.
    """
    if _interrupts.is_held or _interrupts.waiting is not None:
        return 0
    try:
        _interrupts.put_back()
        if _interrupts.waiting is None:
            return 0
    except KeyboardInterrupt:
        pass
    while True:  # one has come in between, and results may still have no names
        try:
            _interrupts.deliver_soon()
            return 0
        except KeyboardInterrupt:
            continue


_PendingCall = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_put_back_later = _PendingCall(_put_back)


class _PendingCalls:
    """Those of the interpreter: `_pending_calls[function] = None` adds one.

    After an assignment Python does not look for pending calls, as it does after a call of C.
    """

    __setitem__: Any = staticmethod(
        ctypes.PYFUNCTYPE(ctypes.c_int, _PendingCall, ctypes.c_void_p)(
            ("Py_AddPendingCall", ctypes.pythonapi)
        )
    )


_pending_calls = _PendingCalls()


def hold_interrupts(
    is_needed: bool, function: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Return what a function returns; Ctrl-C waits for it if it is all that is left.

    It does nothing outside of the main thread, which alone hears of Ctrl-C, under a handler of the
    user's own, and in a job of several processes, which its launcher ends. Who calls it returns
    what it returned at once: from a call to the next, Python may be interrupted.

    Args:
        is_needed: whether arrays are given up.
        function: what to call.
        arguments: of it.

    Raises:
        KeyboardInterrupt: at the start, one has waited until now; at the end, the function failed.
    """
    is_main = is_needed and threading.current_thread() is threading.main_thread()
    if not is_main or not _interrupts.hold():
        return function(*arguments)
    try:
        made = function(*arguments)
    except BaseException as error:
        _interrupts.fail(error)
        raise
    # No `with`: after its end Python would look for pending calls, and we have not returned yet.
    _interrupts.release()
    return made


__all__ = ["hold_interrupts", "tell"]
