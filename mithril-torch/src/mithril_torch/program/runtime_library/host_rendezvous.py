"""How the processes of a group find out that they share a host, and may read each other's memory.

All of the group do, or none.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mithril_torch.program.runtime_library.cross_memory import (
    OtherProcess,
    SharedFile,
    allow_reading,
    load_libc,
)
from mithril_torch.program.runtime_library.host_channels import (
    SLOT,
    SLOTS,
    Channel,
    HostChannels,
    Slot,
)
from mithril_torch.program.runtime_library.loopback_limit import is_loopback_limited

TOKEN = 8
"""Integers that a process proves itself with."""


def open_channels(process_group: Any, place: int, timeout: float) -> HostChannels | None:
    """Return channels to the others of a group; None unless each can read all the others.

    All of the group call this; what each needs to know of the others comes over the group itself.

    Args:
        process_group: PyTorch's, of CPUs.
        place: of this process in it.
        timeout: seconds to wait for another one.
    """
    ranks = dist.get_process_group_ranks(process_group)
    own = Introduction(len(ranks))
    found = [torch.empty_like(own.known) for _ in ranks]
    dist.all_gather(found, own.known, group=process_group)
    channels = reach_others(own, found, place, ranks, timeout)
    reached = torch.tensor([channels is not None], dtype=torch.int32, device="cpu")
    dist.all_reduce(reached, dist.ReduceOp.MIN, group=process_group)
    return channels if reached.item() else None


class Introduction:
    """What the others must know of this process; `known` has zeros if it cannot take part.

    Else it has: 1, the host, the process, the descriptor of its file, and where a token lies, which
    follows.

    Args:
        size: how many processes there are.
    """

    def __init__(self, size: int) -> None:
        self.known = torch.zeros(5 + TOKEN, dtype=torch.int64, device="cpu")
        self.file: SharedFile | None = None
        self.descriptor = -1
        try:
            if not is_loopback_limited():
                self._make_file(size * SLOTS * SLOT)
        except (OSError, AttributeError, ValueError):  # another system, or it lacks some of this
            self.known.zero_()

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def _make_file(self, length: int) -> None:
        """Make what others write into, and read.

        Raises:
            OSError, AttributeError, ValueError: this system cannot do so.
        """
        load_libc()
        allow_reading()
        self.descriptor = os.memfd_create("channels")
        os.ftruncate(self.descriptor, length)
        file = SharedFile(self.descriptor, length)
        for offset in range(0, length, SLOT):
            slot = Slot(file, offset)
            slot.sent.make()
            slot.read.make()
        token = bytearray(os.urandom(8 * TOKEN))
        self.known[5:] = torch.frombuffer(token, dtype=torch.int64)
        place = self.known.data_ptr() + 5 * self.known.itemsize
        known = 1, read_host(), os.getpid(), self.descriptor, place
        for i, x in enumerate(known):
            self.known[i] = x
        self.file = file


def read_host() -> int:
    """Return a number that tells hosts apart, and containers and networks of one host.

    Raises:
        OSError, ValueError: the system does not tell.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "net")]
    return zlib.crc32(f"{boot} {spaces}".encode())


def reach_others(
    own: Introduction, found: list[torch.Tensor], place: int, ranks: list[int], timeout: float
) -> HostChannels | None:
    """Return channels to others, if what they said of themselves is true here.

    Args:
        own: of this process.
        found: what each process said.
        place: of this process.
        ranks: what messages call each.
        timeout: seconds to wait for another one.
    """
    if own.file is None:
        return None
    channels: dict[int, Channel] = {}
    slots = [n * SLOT for n in range(SLOTS)]
    for i, known in enumerate(found):
        takes_part, host, process, descriptor, address = known[:5].tolist()
        if not takes_part or host != own.known[1]:
            return None
        if i == place:
            continue
        try:
            other = OtherProcess(process, ranks[i])
            shown = torch.zeros(TOKEN, dtype=torch.int64, device="cpu")
            other.read(address, shown)
            if not torch.equal(shown, known[5:]):
                return None
            theirs = open_file(process, descriptor, len(own.file.map))
        except (OSError, AttributeError, RuntimeError, ValueError):  # the kernel does not let it
            return None
        incoming = [Slot(own.file, i * SLOTS * SLOT + at) for at in slots]
        outgoing = [Slot(theirs, place * SLOTS * SLOT + at) for at in slots]
        channels[i] = Channel(other, timeout, incoming, outgoing)
    return HostChannels(channels)


def open_file(process: int, descriptor: int, size: int) -> SharedFile:
    """Return the file that another process has open.

    Raises:
        OSError: the kernel does not let it be opened.
        ValueError: it is smaller than what it should be.
    """
    opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        return SharedFile(opened, size)
    finally:
        os.close(opened)


__all__: list[str] = []
