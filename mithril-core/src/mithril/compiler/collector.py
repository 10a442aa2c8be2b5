"""Python's collector of cycles, which pauses while plans are made.

Planning makes very many objects, of which most stay, and next to no cycles. The collector would go
through all of them whenever their number has grown by a quarter, which takes long for deep models.
What is let go of is freed by its counts of references, and cycles by the next collection.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Planning:
    """How many threads plan, and whether cycles were collected before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_on = False

    @contextmanager
    def pause_collector(self) -> Iterator[None]:
        """Let no cycles be collected meanwhile, in any thread; who had it off before keeps it off.

        >>> with pause_collector():
        ...     gc.isenabled()
        False
        """
        with self._lock:
            if not self._count:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count and self._was_on:
                    gc.enable()


pause_collector = _Planning().pause_collector

__all__ = ["pause_collector"]
