"""Memory of other processes of this host: what the C library has to share and to read it.

`process_vm_readv` (Linux, "cross-memory attach") copies once, from where data lies in another
process to where it belongs in this one. Semaphores of POSIX in a file in memory, which both map,
tell when data is there and when it has been read; they order accesses to memory, too.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

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


def allow_reading() -> None:
    """Let the process that started this one, and all its descendants, read this one.

    That is needed where Yama lets only ancestors do so. A process whose parent has ended has none
    that it could name.
    """
    parent = os.getppid()
    if parent > 1 and read_scope() == "1":
        load_libc().prctl(PR_SET_PTRACER, ctypes.c_ulong(parent), 0, 0, 0)


def read_scope() -> str:
    """Return whom Yama lets read processes: 0 is all of one user, 1 ancestors and who is named."""
    file = Path("/proc/sys/kernel/yama/ptrace_scope")
    return file.read_text(encoding="ascii").strip() if file.exists() else "0"


class OtherProcess:
    """A process of this host; it is known to have ended as soon as it has.

    Args:
        process: its number.
        rank: what messages call it.
    """

    def __init__(self, process: int, rank: int) -> None:
        self.process = process
        self.rank = rank
        self.descriptor = -1  # for `__del__`, if there is no such process
        self.descriptor = os.pidfd_open(process)
        self.poll = select.poll()
        self.poll.register(self.descriptor, select.POLLIN)

    def __str__(self) -> str:
        """Return what a message calls it."""
        return f"rank {self.rank} (process {self.process})"

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def has_ended(self) -> bool:
        """Whether it has."""
        return bool(self.poll.poll(0))

    def read(self, address: int, into: torch.Tensor) -> None:
        """Copy what lies at an address in it into a contiguous tensor.

        Raises:
            RuntimeError: it has ended, or may not be read any more.
        """
        library, here, left = load_libc(), into.data_ptr(), into.nbytes
        while left:
            to, origin = IoVector(here, left), IoVector(address, left)
            moved = library.process_vm_readv(
                self.process, ctypes.addressof(to), 1, ctypes.addressof(origin), 1, 0
            )
            if moved <= 0:
                self._raise_unread(ctypes.get_errno())
            here, address, left = here + moved, address + moved, left - moved

    def _raise_unread(self, code: int) -> NoReturn:
        if code == errno.EPERM:
            raise RuntimeError(
                f"{self} may not be read any more; {os.strerror(code)}; keep the process that "
                f"started both of them alive, or give the backend cross_memory=False"
            )
        raise RuntimeError(f"Connection closed: {self} has no such memory; {os.strerror(code)}")


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
            if other.has_ended():
                if self.try_wait():  # the last that it did
                    return
                raise RuntimeError(f"Connection closed: {other} has ended")
            if time.monotonic() > last:
                raise RuntimeError(f"Timed out waiting {timeout:g} s for {other} to exchange data")


__all__: list[str] = []
