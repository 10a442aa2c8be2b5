"""What a process does that gets real interrupts: `python -m tests.training.sigint_scripts NAME`.

It writes "?" for each one that it wants, and ends with a line of what became of it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from typing import Any

import mithril as ml
from mithril.runtime.interrupts import hold_interrupts

ROUNDS = 100
add = ml.jit(lambda x: x + 1.0, donate=(0,))


def ask() -> None:
    sys.stdout.write("?")
    sys.stdout.flush()


def start() -> ml.Array:
    """Return what a first call has made: nothing of it stays."""
    made: ml.Array = add(ml.NumpyBackend().ones(8, 8))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return made


def loop() -> object:
    """A loop of many small calls has its array after each interrupt, whenever it comes."""
    x, lost = start(), 0
    for _ in range(ROUNDS):
        try:
            ask()
            while True:
                x = add(x)
        except KeyboardInterrupt:
            pass
        try:
            x.numpy()
        except ml.BackendError:
            x, lost = start(), lost + 1
    return lost


def coroutine() -> object:
    """asyncio cancels the main task, as it does in a process that has made no step."""
    start()
    found: list[str] = []

    async def wait() -> None:
        ask()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            found.append("cancelled")
            raise

    try:
        asyncio.run(wait())
    except KeyboardInterrupt:
        return found
    return "not interrupted"


def own_handler() -> object:
    """A handler of the user's own hears of it in the middle of a call, and stays."""
    start()
    heard = threading.Event()

    def hear(number: int, frame: Any) -> None:
        heard.set()

    def call() -> bool:
        ask()
        return heard.wait(60)

    signal.signal(signal.SIGINT, hear)
    return hold_interrupts(True, call), signal.getsignal(signal.SIGINT) is hear


def thread() -> object:
    """A call in another thread holds nothing back."""
    entered, ended = threading.Event(), threading.Event()

    def call() -> bool:
        entered.set()
        return ended.wait(60)

    other = threading.Thread(target=hold_interrupts, args=(True, call))
    other.start()
    entered.wait()
    try:
        ask()
        time.sleep(60)
    except KeyboardInterrupt:
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        ended.set()
        other.join()
    return "not interrupted"


def twice() -> object:
    """The second one breaks a call off; the next call has its results, again."""

    def call() -> None:
        ask()
        time.sleep(0.5)
        ask()
        time.sleep(60)

    try:
        hold_interrupts(True, call)
    except KeyboardInterrupt:
        pass
    else:
        return "not interrupted"
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler, start().shape


if __name__ == "__main__":
    print("\n", globals()[sys.argv[1]](), sep="")
