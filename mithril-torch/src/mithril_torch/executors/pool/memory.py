"""Memory that controller and workers share, without a name in the file system.

It is an anonymous file, which every worker inherits: the kernel frees it with its last user,
however that one ends. `Arena` holds arrays in transit; `Progress` the current step of each worker.
"""

from __future__ import annotations

import mmap
import os
import tempfile

ALIGNMENT = 64
PAGE = 1 << 20
"""The arena grows by whole mebibytes."""
GROWTH = 1 << 28
"""Up to this size the arena doubles when it grows; above, it takes what is needed."""


def anonymous_file() -> int:
    """Return the descriptor of a file in memory; where there is none, of a deleted file on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mithril")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Arena:
    """Space for arrays, handed out piece after piece and taken back all at once.

    Only the controller hands out; a worker follows its size with `follow`.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = 0
        self.top = 0
        self._map: mmap.mmap | None = None

    @property
    def buffer(self) -> mmap.mmap:
        """The bytes."""
        assert self._map is not None
        return self._map

    def reserve(self, size: int) -> int:
        """Return where the next `size` bytes are, growing the arena if it is too small.

        Raises:
            OSError: the memory cannot be had.
        """
        start = -(-self.top // ALIGNMENT) * ALIGNMENT
        if start + size > self.size:
            self._grow(start + size)
        self.top = start + size
        return start

    def shrink(self, keep: int) -> None:
        """Give what is beyond `keep` bytes back to the system; nothing is handed out."""
        assert self.top == 0
        if self.size > keep:
            self.follow(keep)
            os.ftruncate(self.descriptor, keep)

    def follow(self, size: int) -> None:
        """Map the file as it is now: `size` bytes."""
        if size != self.size:
            # The old map lives on until the last view of it is gone.
            self._map = mmap.mmap(self.descriptor, size)
            self.size = size

    def close(self) -> None:
        """Let go of the memory; once is enough."""
        self._map = None
        self.descriptor = _close_descriptor(self.descriptor)

    def _grow(self, needed: int) -> None:
        if needed <= GROWTH:
            needed = max(needed, 2 * self.size)
        size = -(-needed // PAGE) * PAGE
        if hasattr(os, "posix_fallocate"):
            # Memory that is missing is an error here, and would be a deadly signal at first use.
            os.posix_fallocate(self.descriptor, 0, size)
        else:
            os.ftruncate(self.descriptor, size)
        self.follow(size)


IDLE, STARTING, LOADING, TAKING, RUNNING, ANSWERING, EARLIER = range(7)
"""What a worker can be at; `EARLIER`: a program whose run waited for a message."""
BEFORE = -1
"""The step of a program that has not come to its first one."""


class Progress:
    """For each worker the step of the program it is in, and what it is at; two integers each."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        size = 16 * workers
        is_new = os.fstat(descriptor).st_size < size
        if is_new:
            os.ftruncate(descriptor, size)
        self._slots = memoryview(mmap.mmap(descriptor, size)).cast("q")
        if is_new:
            for rank in range(workers):
                self.enter(rank, STARTING)

    def steps(self, rank: int) -> memoryview:
        """Return the slot into which a worker writes its step."""
        return self._slots[2 * rank : 2 * rank + 1]

    def enter(self, rank: int, activity: int) -> None:
        """Say what a worker is at from now on, before any step."""
        self._slots[2 * rank] = BEFORE
        self._slots[2 * rank + 1] = activity

    def read(self, rank: int) -> tuple[int, int]:
        """Return the step and the activity of a worker."""
        return self._slots[2 * rank], self._slots[2 * rank + 1]

    def close(self) -> None:
        """Let go of the memory; what was written last can still be read. Once is enough."""
        self._slots = memoryview(bytes(self._slots)).cast("q")
        self.descriptor = _close_descriptor(self.descriptor)


def _close_descriptor(descriptor: int) -> int:
    """Close a descriptor that is open, and return what no descriptor is."""
    if descriptor >= 0:
        os.close(descriptor)
    return -1
