"""One message to every worker and one answer from each, or the failures instead.

It never blocks for ever: it ends when a worker closes its socket, answers with an error, or has
been stopped for as long as the timeout. After an exception it can be resumed.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from mithril_torch.executors.pool.messages import CHUNK, Inbox, Message
from mithril_torch.executors.pool.processes import WorkerProcesses

CHECK_INTERVAL = 1.0
"""Seconds between two looks for stopped workers; less where the timeout is short."""
ECHO = 0.05
"""Seconds for others to end or fail, too, after a worker has ended."""
CHECKS_PER_TIMEOUT = 20
"""Looks for a stopped worker within a timeout."""


class RoundTrip:
    """Sends `messages` (one a rank) and collects `answers`.

    `ended` are the ranks whose sockets closed, `stopped` those held by a signal for the whole
    timeout. `is_waiting` is true while an exception can do no harm.
    """

    def __init__(self, workers: WorkerProcesses, messages: Sequence[bytes], timeout: float) -> None:
        self.workers = workers
        self.answers: list[Message | None] = [None] * workers.size
        self.ended: list[int] = []
        self.stopped: list[int] = []
        self.is_waiting = False
        self._timeout = timeout
        self._inboxes = [Inbox() for _ in messages]
        self._ranks = {channel.fileno(): rank for rank, channel in enumerate(workers.sockets)}
        self._poll = select.poll()
        self._unsent = [memoryview(message) for message in messages]
        self._stopped_since: dict[int, float] = {}
        self._check_interval = min(CHECK_INTERVAL, timeout / CHECKS_PER_TIMEOUT)
        self._next_check = time.monotonic() + self._check_interval

    def start(self) -> None:
        """Send as much as goes out at once."""
        for rank, channel in enumerate(self.workers.sockets):
            self._poll.register(channel, select.POLLIN)
            self._send(rank)

    @property
    def is_done(self) -> bool:
        """Whether every worker has answered."""
        return None not in self.answers

    @property
    def failed(self) -> list[int]:
        """The ranks that answered with an error."""
        return [rank for rank, answer in enumerate(self.answers) if _is_error(answer)]

    @property
    def silent(self) -> list[int]:
        """The ranks that have neither answered nor ended."""
        return [
            rank
            for rank, answer in enumerate(self.answers)
            if answer is None and rank not in self.ended
        ]

    @property
    def has_failed(self) -> bool:
        """Whether it cannot end well any more."""
        return bool(self.ended or self.stopped or self.failed)

    def wait(self) -> None:
        """Wait until every worker has answered, or there is trouble."""
        while not self.is_done and not self.has_failed:
            self._step(self._next_check - time.monotonic())
            if time.monotonic() >= self._next_check:
                self._check_stopped()

    def drain(self, seconds: float) -> None:
        """Wait for what the others have to say, trouble or not, but only so long.

        Where a worker has ended, what the others say is mostly an echo, and the wait is short.
        """
        deadline = time.monotonic() + seconds
        is_short = False
        while self.silent and time.monotonic() < deadline:
            if not is_short and (self.ended or self.stopped):
                is_short, deadline = True, min(deadline, time.monotonic() + ECHO)
            self._step(deadline - time.monotonic())

    def _step(self, seconds: float) -> None:
        """Wait for the first of anything, then take in all there is."""
        self.is_waiting = True
        events = self._poll.poll(max(seconds, 0.0) * 1000)
        self.is_waiting = False
        for descriptor, event in events:
            rank = self._ranks[descriptor]
            if event & select.POLLOUT:
                self._send(rank)
            if event & ~select.POLLOUT and rank not in self.ended:
                self._receive(rank)

    def _send(self, rank: int) -> None:
        channel = self.workers.sockets[rank]
        try:
            sent = channel.send(self._unsent[rank])
        except BlockingIOError:
            sent = 0
        except (BrokenPipeError, ConnectionResetError):
            self._end(rank)
            return
        self._unsent[rank] = self._unsent[rank][sent:]
        mask = select.POLLIN | select.POLLOUT if self._unsent[rank] else select.POLLIN
        self._poll.modify(channel, mask)

    def _receive(self, rank: int) -> None:
        try:
            data = self.workers.sockets[rank].recv(CHUNK)
        except ConnectionResetError:
            data = b""
        if not data:
            self._end(rank)
            return
        self._inboxes[rank].add(data)
        self.answers[rank] = self._inboxes[rank].take()

    def _end(self, rank: int) -> None:
        self._poll.unregister(self.workers.sockets[rank])
        self.ended.append(rank)

    def _check_stopped(self) -> None:
        """Note which workers are stopped; one that has been for the timeout is trouble."""
        now = time.monotonic()
        self._next_check = now + self._check_interval
        stopped = [rank for rank in self.silent if self.workers.is_stopped(rank)]
        self._stopped_since = {rank: self._stopped_since.get(rank, now) for rank in stopped}
        # A little less, so that it is told within the timeout.
        patience = 0.9 * self._timeout - self._check_interval
        self.stopped = [
            rank for rank, since in self._stopped_since.items() if now - since >= patience
        ]


def _is_error(answer: Message | None) -> bool:
    return answer is not None and "error" in answer.header
