"""Memory of other processes of this host: what the C library has to share and to read it.

`process_vm_readv` (Linux, "cross-memory attach") copies once, from where data lies in another
process to where it belongs in this one. Semaphores of POSIX in a file in memory, which both map,
tell when data is there and when it has been read; they order accesses to memory, too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import sys
import time
from functools import cache
from typing import Any

import torch

SEMAPHORE = 64
"""Bytes that a semaphore has here: of the C libraries of Linux it needs at most 32."""
PR_SET_PTRACER = 0x59616D61
"""Of `prctl`: which process, with its descendants, may read this one where Yama restricts that."""
SLICE = 0.2
"""Seconds for which a process waits before it looks whether the other one is still there."""


class IoVector(ctypes.Structure):
    """A piece of memory, `struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class TimeSpec(ctypes.Structure):
    """A moment, `struct timespec`."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@cache
def load_libc() -> Any:
    """Return the C library.

    Raises:
        OSError: this system has another one than Linux.
        AttributeError: the library lacks a function.
    """
    if sys.platform != "linux":
        raise OSError(f"{sys.platform} has no cross-memory attach")
    library = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_ulong
    library.sem_init.argtypes = pointer, ctypes.c_int, ctypes.c_uint
    library.sem_post.argtypes = library.sem_trywait.argtypes = (pointer,)
    library.sem_timedwait.argtypes = pointer, pointer
    library.process_vm_readv.argtypes = ctypes.c_int, pointer, size, pointer, size, size
    library.process_vm_readv.restype = ctypes.c_ssize_t
    return library


def allow_reading(process: int) -> None:
    """Let a process and its descendants read this one, where Yama lets only ancestors do so."""
    if sys.platform == "linux":
        load_libc().prctl(PR_SET_PTRACER, ctypes.c_ulong(process), 0, 0, 0)


def read_memory(process: int, address: int, into: torch.Tensor) -> None:
    """Copy what lies at an address in another process into a contiguous tensor.

    Raises:
        RuntimeError: it cannot be read; a process that has ended has no memory.
    """
    library, here, left = load_libc(), into.data_ptr(), into.nbytes
    while left:
        to, origin = IoVector(here, left), IoVector(address, left)
        moved = library.process_vm_readv(
            process, ctypes.addressof(to), 1, ctypes.addressof(origin), 1, 0
        )
        if moved <= 0:
            reason = os.strerror(ctypes.get_errno())
            raise RuntimeError(f"Connection closed: memory of process {process} is lost; {reason}")
        here, address, left = here + moved, address + moved, left - moved


class OtherProcess:
    """A process of this host; it is known to have ended as soon as it has."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.descriptor = os.pidfd_open(process)
        self.poll = select.poll()
        self.poll.register(self.descriptor, select.POLLIN)

    def has_ended(self) -> bool:
        """Whether it has."""
        return bool(self.poll.poll(0))

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)


class SharedFile:
    """A file in memory that several processes map.

    Args:
        descriptor: of the file.
        size: bytes.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.map = mmap.mmap(descriptor, size)
        self.bytes = (ctypes.c_char * size).from_buffer(self.map)
        self.address = ctypes.addressof(self.bytes)
        self.integers = memoryview(self.map).cast("q")


class Semaphore:
    """Counts what one process has done and another one has not yet taken notice of.

    Args:
        file: where it lies; who made the file makes the semaphore, too.
        offset: where in the file.
    """

    def __init__(self, file: SharedFile, offset: int) -> None:
        self.file = file
        self.address = file.address + offset

    def make(self) -> None:
        """Begin with nothing done."""
        load_libc().sem_init(self.address, 1, 0)

    def post(self) -> None:
        """Say that something is done."""
        load_libc().sem_post(self.address)

    def try_wait(self) -> bool:
        """Take notice of something, if there is anything."""
        found: int = load_libc().sem_trywait(self.address)
        return found == 0

    def wait(self, other: OtherProcess, timeout: float) -> None:
        """Wait until something is done, by another process.

        Raises:
            RuntimeError: that has ended, or has done nothing for so many seconds.
        """
        library, last = load_libc(), time.monotonic() + timeout
        while not self.try_wait():
            until = time.time() + SLICE  # of the clock that `sem_timedwait` goes by
            moment = TimeSpec(int(until), int(until % 1 * 1e9))
            if library.sem_timedwait(self.address, ctypes.addressof(moment)) == 0:
                return
            if other.has_ended() and not self.try_wait():
                raise RuntimeError(f"Connection closed: process {other.process} has ended")
            if time.monotonic() > last:
                raise RuntimeError(f"Timed out waiting {timeout:g} s for process {other.process}")


__all__: list[str] = []
