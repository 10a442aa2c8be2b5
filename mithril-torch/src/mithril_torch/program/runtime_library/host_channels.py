"""Channels between the processes of a group on one host, which read each other's memory.

A process says where its data lies, and whom it is for; the other one reads it when it waits for it,
or when it next begins an exchange, and says so. Nobody is interrupted, and no thread is needed. Up
to then what was sent may not be written to, so to wait for an exchange is to wait for both.

Exchanges of a group are counted: messages of the same number belong together, in whatever order
they are read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mithril_torch.program.runtime_library.cross_memory import (
    SEMAPHORE,
    OtherProcess,
    Semaphore,
    SharedFile,
    allow_reading,
    load_libc,
    read_memory,
)
from mithril_torch.program.runtime_library.loopback_limit import is_loopback_limited

SLOTS = 64
"""How many messages to one process may be on their way at once."""
SLOT = 192
"""Bytes of one: two semaphores, then where its table lies and how many rows that has."""
TOKEN = 8
"""Integers that a process proves itself with."""


class Slot:
    """Where one message is told of.

    Args:
        file: of the process that it goes to.
        offset: where in the file.
    """

    def __init__(self, file: SharedFile, offset: int) -> None:
        self.sent = Semaphore(file, offset)
        self.read = Semaphore(file, offset + SEMAPHORE)
        self.file = file
        self.place = (offset + 2 * SEMAPHORE) // 8

    def write(self, table: torch.Tensor) -> None:
        """Tell the other process where a message lies."""
        self.file.integers[self.place] = table.data_ptr()
        self.file.integers[self.place + 1] = len(table)
        self.sent.post()

    def table(self) -> tuple[int, int]:
        """Return where the table of what was sent lies, and its rows."""
        return self.file.integers[self.place], self.file.integers[self.place + 1]


class Channel:
    """What this process and another one tell each other.

    Args:
        other: the other process.
        timeout: seconds to wait for it.
        incoming: slots in the file of this process, outgoing: in that of the other.
    """

    def __init__(
        self, other: OtherProcess, timeout: float, incoming: list[Slot], outgoing: list[Slot]
    ) -> None:
        self.other = other
        self.timeout = timeout
        self.incoming = incoming
        self.outgoing = outgoing


class Sent:
    """What another process shall read.

    Args:
        channel: to that process.
        number: of the message.
        parts: contiguous tensors.
    """

    def __init__(self, channel: Channel, number: int, parts: list[torch.Tensor]) -> None:
        self.channel = channel
        self.slot = channel.outgoing[number % SLOTS]
        self.table = torch.tensor([(x.data_ptr(), x.nbytes) for x in parts], dtype=torch.int64)
        self.parts: list[torch.Tensor] | None = parts
        self.slot.write(self.table)

    def wait(self) -> None:
        """Wait until it has been read."""
        if self.parts is not None:
            self.slot.read.wait(self.channel.other, self.channel.timeout)
            self.parts = None

    def is_completed(self) -> bool:
        """Whether it has been read."""
        if self.parts is not None and self.slot.read.try_wait():
            self.parts = None
        return self.parts is None


class Exposed:
    """What another process lets this one read.

    Args:
        channel: to that process.
        number: of the message.
    """

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel = channel
        self.slot = channel.incoming[number % SLOTS]
        self.rows: list[list[int]] | None = None

    def wait(self) -> None:
        """Wait until it is there."""
        if self.rows is None:
            self.slot.sent.wait(self.channel.other, self.channel.timeout)
            self._read_table()

    def is_there(self) -> bool:
        """Whether it is there."""
        if self.rows is None and self.slot.sent.try_wait():
            self._read_table()
        return self.rows is not None

    def read(self, part: int, into: torch.Tensor, start: int = 0) -> None:
        """Copy bytes of a part, from one on, into a contiguous tensor.

        Raises:
            RuntimeError: the part has fewer; or the other process has ended.
        """
        assert self.rows is not None, "it is read when it is there"
        address, size = self.rows[part] if part < len(self.rows) else (0, 0)
        if size < start + into.nbytes:
            raise RuntimeError(
                f"process {self.channel.other.process} sent {size} bytes where "
                f"{start + into.nbytes} belong; this is a fault of Mithril, please report it"
            )
        read_memory(self.channel.other.process, address + start, into)

    def release(self) -> None:
        """Tell the other process that all has been read."""
        self.slot.read.post()

    def _read_table(self) -> None:
        address, count = self.slot.table()
        table = torch.empty((count, 2), dtype=torch.int64)
        read_memory(self.channel.other.process, address, table)
        self.rows = table.tolist()


class Received:
    """What comes from another process into tensors of this one.

    Args:
        channel: to that process.
        number: of the message.
        parts: contiguous tensors, as large as what comes.
    """

    def __init__(self, channel: Channel, number: int, parts: list[torch.Tensor]) -> None:
        self.exposed = Exposed(channel, number)
        self.parts: list[torch.Tensor] | None = parts

    def wait(self) -> None:
        """Wait until it has come."""
        if self.parts is not None:
            self.exposed.wait()
            self._read()

    def is_completed(self) -> bool:
        """Whether it has come."""
        if self.parts is not None and self.exposed.is_there():
            self._read()
        return self.parts is None

    def _read(self) -> None:
        for i, into in enumerate(self.parts or ()):
            self.exposed.read(i, into)
        self.exposed.release()
        self.parts = None


class HostMessages:
    """Messages of one collective: they have all come, and gone, or not.

    Args:
        messages: what is received before what is sent.
    """

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages

    def wait(self) -> None:
        """Wait until all have."""
        while self.messages:
            self.messages[0].wait()
            del self.messages[0]

    def is_completed(self) -> bool:
        """Whether all have."""
        self.messages = [message for message in self.messages if not message.is_completed()]
        return not self.messages


class HostChannels:
    """The channels between this process and the others of its group, by their place in it.

    Args:
        channels: one for each of the others.
    """

    def __init__(self, channels: dict[int, Channel]) -> None:
        self.channels = channels
        self.number = 0
        self.begun: list[tuple[int, Any]] = []

    def send_and_receive(
        self,
        sent: dict[int, list[torch.Tensor]],
        received: dict[int, list[torch.Tensor]],
    ) -> HostMessages:
        """Begin to send some processes tensors, and to receive theirs into others.

        Args:
            sent: contiguous tensors, by the place of whom they are for.
            received: what they come into, by the place of whom they come from.
        """
        (number,) = self.reserve(1)
        messages: list[Any] = [Received(self.channels[i], number, x) for i, x in received.items()]
        messages += [Sent(self.channels[i], number, x) for i, x in sent.items()]
        exchange = HostMessages(messages)
        self.begin(number, exchange)
        return exchange

    def reserve(self, count: int) -> range:
        """Return the numbers of the next messages; their slots are free."""
        self.progress()
        found = range(self.number, self.number + count)
        self.number = found.stop
        while self.begun and self.begun[0][0] < found.stop - SLOTS:
            self.begun.pop(0)[1].wait()
        return found

    def begin(self, number: int, exchange: Any) -> None:
        """Keep an exchange, whose first message has a number, until all have come and gone."""
        self.begun.append((number, exchange))

    def progress(self) -> None:
        """Read what has come, of all exchanges."""
        self.begun = [begun for begun in self.begun if not begun[1].is_completed()]

    def settle(self) -> None:
        """Wait for all exchanges: those that nobody has waited for."""
        while self.begun:
            self.begun.pop(0)[1].wait()

    def close(self) -> None:
        """Let go of the other processes."""
        for channel in self.channels.values():
            channel.other.close()
        self.channels = {}


def open_channels(process_group: Any, place: int, size: int, timeout: float) -> Any:
    """Return channels to the others of a group; None unless each can read all the others.

    All of the group call this; what each needs to know of the others comes over the group itself.

    Args:
        process_group: PyTorch's, of CPUs.
        place: of this process in it.
        size: how many there are.
        timeout: seconds to wait for another one.
    """
    own, file, descriptor = introduce_process(size)
    found = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(found, own, group=process_group)
    channels = None if file is None else reach_others(file, found, place, timeout)
    reached = torch.tensor([channels is not None], dtype=torch.int32)
    dist.all_reduce(reached, dist.ReduceOp.MIN, group=process_group)
    if descriptor >= 0:
        os.close(descriptor)
    if channels is not None and not reached.item():
        channels.close()
    return channels if reached.item() else None


def introduce_process(size: int) -> tuple[torch.Tensor, SharedFile | None, int]:
    """Return what others must know of this process, its file, and the descriptor of that.

    They must know: that it can take part, its host, process and descriptor, and where a token lies,
    and what it is. Zeros say that it cannot.
    """
    known = torch.zeros(5 + TOKEN, dtype=torch.int64)
    if is_loopback_limited():
        return known, None, -1
    try:
        load_libc()
        allow_reading(os.getppid())
        host, length = read_host(), size * SLOTS * SLOT
        descriptor = os.memfd_create("channels")
        os.ftruncate(descriptor, length)
        file = SharedFile(descriptor, length)
    except (OSError, AttributeError):  # another system, or one without some of this
        return known, None, -1
    for offset in range(0, length, SLOT):
        slot = Slot(file, offset)
        slot.sent.make()
        slot.read.make()
    known[5:] = torch.frombuffer(bytearray(os.urandom(8 * TOKEN)), dtype=torch.int64)
    token = known.data_ptr() + 5 * known.itemsize
    known[:5] = torch.tensor([1, host, os.getpid(), descriptor, token])
    return known, file, descriptor


def read_host() -> int:
    """Return a number that tells hosts, and the containers of one host, apart.

    Raises:
        OSError: the system does not tell.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return (int(boot.replace("-", ""), 16) ^ namespace) & ((1 << 62) - 1)


def reach_others(
    file: SharedFile, found: list[torch.Tensor], place: int, timeout: float
) -> HostChannels | None:
    """Return channels to others, as far as what they said of themselves is true here.

    Args:
        file: of this process.
        found: what each process said.
        place: of this process.
        timeout: seconds to wait for another one.
    """
    channels: dict[int, Channel] = {}
    for i, known in enumerate(found):
        takes_part, host, process, descriptor, address = known[:5].tolist()
        if not takes_part or host != found[place][1]:
            return None
        if i == place:
            continue
        try:
            shown = torch.zeros(TOKEN, dtype=torch.int64)
            read_memory(process, address, shown)
            theirs = open_file(process, descriptor, len(file.map))
            other = OtherProcess(process)
        except (OSError, AttributeError, RuntimeError):  # the kernel does not let it
            return None
        if not torch.equal(shown, known[5:]):
            return None
        slots = [n * SLOT for n in range(SLOTS)]
        incoming = [Slot(file, i * SLOTS * SLOT + at) for at in slots]
        outgoing = [Slot(theirs, place * SLOTS * SLOT + at) for at in slots]
        channels[i] = Channel(other, timeout, incoming, outgoing)
    return HostChannels(channels)


def open_file(process: int, descriptor: int, size: int) -> SharedFile:
    """Return the file that another process has open.

    Raises:
        OSError: the kernel does not let it be opened.
    """
    opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        return SharedFile(opened, size)
    finally:
        os.close(opened)


__all__: list[str] = []
