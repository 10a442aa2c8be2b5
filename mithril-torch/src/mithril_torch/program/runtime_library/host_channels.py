"""Channels between the processes of a group on one host, which read each other's memory.

A process says where its data lies, and whom it is for; the other one reads it when it waits for it,
or when it next begins an exchange of the group, and says so. Nobody is interrupted, and no thread
is needed. Up to then what was sent may not be written to, so to wait for an exchange is to wait for
both.

Exchanges of a group are counted: messages of the same number belong together, in whatever order
they are read. What each is a part of, and how large its parts are, is compared.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import torch

from mithril_torch.program.runtime_library.cross_memory import (
    SEMAPHORE,
    OtherProcess,
    Semaphore,
    SharedFile,
)

SLOTS = 64
"""How many messages to one process may be on their way at once."""
SLOT = 192
"""Bytes of one: two semaphores, then where its table lies and how many rows that has."""


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


class Label(NamedTuple):
    """Which message it is, for both that have to do with it.

    Args:
        kind: of the collective.
        number: among those of the group.
    """

    kind: str
    number: int

    @property
    def slot(self) -> int:
        """Which slot it has."""
        return self.number % SLOTS

    def row(self) -> tuple[int, int]:
        """Return it as two integers."""
        return zlib.crc32(self.kind.encode()), self.number


class Sent:
    """What another process shall read.

    Its table has the label, then where each part lies, and its bytes.

    Args:
        channel: to that process.
        label: of the message.
        parts: contiguous tensors.
    """

    def __init__(self, channel: Channel, label: Label, parts: list[torch.Tensor]) -> None:
        self.channel = channel
        self.slot = channel.outgoing[label.slot]
        rows = [label.row(), *((x.data_ptr(), x.nbytes) for x in parts)]
        self.table = torch.tensor(rows, dtype=torch.int64, device="cpu")
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
        label: of the message.
        sizes: bytes of each part.
    """

    def __init__(self, channel: Channel, label: Label, sizes: list[int]) -> None:
        self.channel = channel
        self.slot = channel.incoming[label.slot]
        self.label = label
        self.sizes = sizes
        self.addresses: list[int] | None = None

    def wait(self) -> None:
        """Wait until it is there."""
        if self.addresses is None:
            self.slot.sent.wait(self.channel.other, self.channel.timeout)
            self._read_table()

    def is_there(self) -> bool:
        """Whether it is there."""
        if self.addresses is None and self.slot.sent.try_wait():
            self._read_table()
        return self.addresses is not None

    def read(self, part: int, into: torch.Tensor, start: int = 0) -> None:
        """Copy bytes of a part, from one on, into a contiguous tensor."""
        assert self.addresses is not None, "it is read when it is there"
        self.channel.other.read(self.addresses[part] + start, into)

    def release(self) -> None:
        """Tell the other process that all has been read."""
        self.slot.read.post()

    def _read_table(self) -> None:
        """Read where the parts lie.

        Raises:
            RuntimeError: they are parts of something else.
        """
        address, count = self.slot.table()
        table = torch.empty((count, 2), dtype=torch.int64, device="cpu")
        self.channel.other.read(address, table)
        (kind, number), *rows = table.tolist()
        sizes = [size for _, size in rows]
        if (kind, number) != self.label.row() or sizes != self.sizes:
            raise RuntimeError(
                f"{self.channel.other} takes no part in {self.label.kind} number "
                f"{self.label.number}, which this process has begun; {sum(sizes)} bytes instead of "
                f"{sum(self.sizes)}; one of them raised an error before, or was given other shapes"
            )
        self.addresses = [address for address, _ in rows]


class Received:
    """What comes from another process into tensors of this one.

    Args:
        channel: to that process.
        label: of the message.
        parts: contiguous tensors, as large as what comes.
    """

    def __init__(self, channel: Channel, label: Label, parts: list[torch.Tensor]) -> None:
        self.exposed = Exposed(channel, label, [x.nbytes for x in parts])
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
        kind: str,
        sent: dict[int, list[torch.Tensor]],
        received: dict[int, list[torch.Tensor]],
    ) -> HostMessages:
        """Begin to send some processes tensors, and to receive theirs into others.

        Args:
            kind: of the collective.
            sent: contiguous tensors, by the place of whom they are for.
            received: what they come into, by the place of whom they come from.
        """
        (label,) = self.reserve(kind, 1)
        messages: list[Any] = [Received(self.channels[i], label, x) for i, x in received.items()]
        messages += [Sent(self.channels[i], label, x) for i, x in sent.items()]
        begun = HostMessages(messages)
        self.begin(label, begun)
        return begun

    def reserve(self, kind: str, count: int) -> list[Label]:
        """Return the labels of the next messages, of one collective; their slots are free."""
        self.progress()
        first, self.number = self.number, self.number + count
        while self.begun and self.begun[0][0] < self.number - SLOTS:
            self.begun.pop(0)[1].wait()
        return [Label(kind, number) for number in range(first, self.number)]

    def begin(self, label: Label, messages: Any) -> None:
        """Keep messages, of which one has a label, until all have come and gone."""
        self.begun.append((label.number, messages))

    def progress(self) -> None:
        """Read what has come, of all that was begun."""
        self.begun = [begun for begun in self.begun if not begun[1].is_completed()]

    def settle(self) -> None:
        """Wait for all that was begun: for what nobody has waited for."""
        while self.begun:
            self.begun.pop(0)[1].wait()


__all__: list[str] = []
