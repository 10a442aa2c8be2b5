"""Reading ahead: a thread that goes through an iterator while the loop works on what it has.

The thread never has more than so many items that the loop has not taken. It ends with the loop,
however that is left, and with the process; an error in it is raised in the loop, in its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from mithril.errors import warn

T = TypeVar("T")
PATIENCE = 10.0
"""Seconds that a loop waits for the item that its thread is reading when it is left."""
NAME = "mithril-batches"


@dataclass(frozen=True)
class _Failure:
    error: BaseException


_END = object()


def read_ahead(items: Iterator[T], count: int) -> Iterator[T]:
    """Yield items that a thread reads ahead.

    Args:
        items: they are gone through in the thread.
        count: how many the thread may have ready; 0 reads each when it is asked for.

    >>> list(read_ahead(iter("abc"), 2))
    ['a', 'b', 'c']
    """
    if not count:
        yield from items
        return
    queue: SimpleQueue[Any] = SimpleQueue()
    free, is_left = threading.Semaphore(count), threading.Event()
    arguments = (items, queue, free, is_left)
    thread = threading.Thread(target=_fill, args=arguments, name=NAME, daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            free.release()
            yield item
    finally:
        is_left.set()
        free.release()
        thread.join(PATIENCE)
        if thread.is_alive():
            warn(
                f"the loop over batches was left, and its data did not come back within "
                f"{PATIENCE:g} s; the thread that reads them ends when they do"
            )


def _fill(
    items: Iterator[Any],
    queue: SimpleQueue[Any],
    free: threading.Semaphore,
    is_left: threading.Event,
) -> None:
    try:
        while True:
            free.acquire()
            if is_left.is_set():
                return
            item = next(items, _END)
            queue.put(item)
            if item is _END:
                return
    except BaseException as error:  # raised where the loop asks for the item
        queue.put(_Failure(error))


__all__ = ["read_ahead"]
