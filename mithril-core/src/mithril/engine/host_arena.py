"""The host arena: memory beside a device's own, for what `to_host` copies.

Where devices compute in the memory of the machine, this is another one: segments that are mapped
besides what the framework allocates, in memory or in files. What is copied lies in a block of a
segment until nobody has it any more; a segment without blocks is unmapped at once. Files have no
name from the moment they are opened, so that nothing is left of them however a process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import deque
from functools import cache
from threading import Lock

import numpy as np

from mithril.engine.alignment import align
from mithril.errors import BackendError
from mithril.units import format_bytes

SEGMENT = 1 << 26
"""Bytes of a segment, unless a block needs more; later ones are larger, so that they stay few."""


class _Segment:
    """A mapped stretch of memory, and which parts of it are free: pairs of start and end."""

    def __init__(self, size: int, where: str) -> None:
        self.memory = _map_file(size) if where == "file" else mmap.mmap(-1, size)
        self.size = size
        self.free = [(0, size)]

    @property
    def is_empty(self) -> bool:
        return self.free == [(0, self.size)]

    def take(self, size: int) -> int | None:
        """Return where a block starts, in the smallest part that has room for it."""
        fits = [(end - start, start, end) for start, end in self.free if end - start >= size]
        if not fits:
            return None
        _, start, end = min(fits)
        self.free.remove((start, end))
        if start + size < end:
            self.free.append((start + size, end))
        return start

    def give_back(self, start: int, size: int) -> None:
        """Make a block free again, and one of free parts that touch."""
        end = start + size
        for part in list(self.free):
            if part[1] == start or part[0] == end:
                self.free.remove(part)
                start, end = min(start, part[0]), max(end, part[1])
        self.free.append((start, end))


class HostArena:
    """Blocks of memory in segments; see the module's text.

    Args:
        where: `memory`, or `file` for files without names in the directory for temporary files.

    Attributes:
        held: bytes of the blocks that somebody has.
        most: the most that these were since `reset_most`.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.held = self.most = 0
        self._segments: list[_Segment] = []
        self._lock = Lock()
        self._freed: deque[tuple[_Segment, int, int]] = deque()

    def allocate(self, nbytes: int) -> np.ndarray:
        """Return bytes that are the caller's until nobody has them any more.

        Args:
            nbytes: how many.

        Raises:
            BackendError: there is no room for them.
        """
        size = align(max(nbytes, 1))
        with self._lock:
            self._settle()
            segment, start = self._find(size)
            self.held += size
            self.most = max(self.most, self.held)
        block = np.frombuffer(segment.memory, np.uint8, nbytes, start)
        weakref.finalize(block, self._free, segment, start, size).atexit = False
        return block

    def hold(self, x: np.ndarray) -> np.ndarray:
        """Return a copy of an array in the arena, whose elements keep their order in memory."""
        major = sorted(range(x.ndim), key=lambda dimension: -abs(x.strides[dimension]))
        flat = self.allocate(x.nbytes).view(x.dtype)
        copy = flat.reshape([x.shape[dimension] for dimension in major])
        copy = copy.transpose(np.argsort(major)) if x.ndim else copy
        copy[...] = x
        return copy

    def reset_most(self) -> None:
        """Begin to look for the most bytes anew."""
        self.most = self.held

    @property
    def segments(self) -> int:
        """How many segments are mapped."""
        return len(self._segments)

    def _find(self, size: int) -> tuple[_Segment, int]:
        for segment in self._segments:
            start = segment.take(size)
            if start is not None:
                return segment, start
        wanted = max(size, SEGMENT, self.held // 8)
        wanted = -(-wanted // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        try:
            segment = _Segment(wanted, self.where)
        except OSError as error:
            raise BackendError(
                f"host arena holds {format_bytes(self.held)} and finds no room for "
                f"{format_bytes(size)} more in {_describe(self.where)} ({error.strerror}); offload "
                f"less, or {_REMEDIES[self.where]}"
            ) from error
        self._segments.append(segment)
        start = segment.take(size)
        assert start is not None, "a new segment has room"
        return segment, start

    def _free(self, segment: _Segment, start: int, size: int) -> None:
        """Take a block back; a collector may ask for it while another block is being made."""
        self._freed.append((segment, start, size))
        while self._freed and self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        """Make free what was taken back, and unmap segments that are empty."""
        while self._freed:
            segment, start, size = self._freed.popleft()
            segment.give_back(start, size)
            self.held -= size
            if segment.is_empty:
                self._segments.remove(segment)


_REMEDIES = {
    "memory": 'let it lie in a file with host_arena="file"',
    "file": "set TMPDIR to a directory with more room",
}


def _describe(where: str) -> str:
    return f"files in {tempfile.gettempdir()}" if where == "file" else "memory"


def _map_file(size: int) -> mmap.mmap:
    """Return a mapped file without a name."""
    with tempfile.TemporaryFile(prefix="mithril-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is told here, not by a signal later
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            os.truncate(file.fileno(), size)
        return mmap.mmap(file.fileno(), size)


@cache
def host_arena(where: str) -> HostArena:
    """Return the arena of this process of a kind.

    Args:
        where: `memory` or `file`.
    """
    return HostArena(where)


def lies_in_arena(x: object) -> bool:
    """Return whether an array of NumPy is a block of an arena, or a part of one."""
    while isinstance(x, np.ndarray) and x.base is not None:
        x = x.base
    return isinstance(x, memoryview | mmap.mmap) and isinstance(_find_memory(x), mmap.mmap)


def _find_memory(x: memoryview | mmap.mmap) -> object:
    return x.obj if isinstance(x, memoryview) else x


__all__ = ["HostArena", "host_arena", "lies_in_arena"]
