"""The connection of a pool to its workers: every round trip succeeds, or raises one clear error.

After an error either all workers have answered and still work together, or none of them is left.
Ctrl-C waits until they have answered; see `interrupts`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mithril.spi import BackendError

from mithril_torch.executors.pool import faults
from mithril_torch.executors.pool.faults import SourceMap
from mithril_torch.executors.pool.interrupts import Interrupts, hold_back
from mithril_torch.executors.pool.messages import Message, encode
from mithril_torch.executors.pool.processes import WorkerProcesses
from mithril_torch.executors.pool.round_trip import RoundTrip

PATIENCE = 0.4
"""Seconds for the other workers to answer after one has failed."""
CHECK = 0.2
"""Seconds for the workers to show, after an error, that they still work together."""


class Connection:
    """Starts `size` workers and talks to them.

    Hold `lock` while talking. `end_reason` says why there are no workers any more.

    Args:
        size: how many workers.
        timeout: seconds that a collective, or a stopped worker, is waited for.
        settings: for each worker.
        count_arrays: returns how many arrays are lost with the workers.
    """

    def __init__(
        self, size: int, timeout: float, settings: dict[str, Any], count_arrays: Callable[[], int]
    ) -> None:
        self.size = size
        self._count_arrays = count_arrays
        self.lock = threading.Lock()
        self.end_reason: str | None = None
        self.owner = os.getpid()
        self.workers = WorkerProcesses(size)
        self._timeout = timeout
        self._has_started = False
        try:
            self.workers.start()
            # There is nothing to lose yet, so Ctrl-C ends a start at once.
            self._exchange(self.workers.setups({**settings, "timeout": timeout}))
            self._exchange([encode({"do": "join", "drop": []})] * size)
            self._has_started = True
        except BaseException:
            self._end("it could not be started")
            raise

    def check(self) -> None:
        """Refuse to go on without workers, or in a forked process.

        Raises:
            BackendError: there is nothing to talk to.
        """
        if self.owner != os.getpid():
            raise BackendError(
                f"Worker pool of {self.size} belongs to process {self.owner}, and this is "
                f"{os.getpid()}, forked from it; open a backend in this process"
            )
        if self.end_reason is not None:
            raise BackendError(
                f"Worker pool of {self.size} has ended, and its arrays with it; "
                f"{self.end_reason}; open the backend again"
            )

    def request(
        self, message: dict[str, Any], source_map: SourceMap | None = None
    ) -> list[Message]:
        """Send a message to every worker and return the answers by rank.

        Args:
            message: what to do.
            source_map: names the steps and lines of the program that this is about.

        Raises:
            BackendError: a worker answered with an error, or ended, or was stopped for too long.
        """
        self.check()
        messages = [encode(message)] * self.size

        def describe(interrupts: int) -> str:
            return self._describe_interrupt(interrupts, source_map)

        with hold_back(describe) as interrupts:
            return self._exchange(messages, source_map, interrupts)

    def close(self) -> None:
        """End all workers, even while another thread waits for them."""
        if self.owner != os.getpid():
            return
        if self.end_reason is None:
            self.end_reason = "it was closed"
        self.workers.kill()
        with self.lock:
            self.workers.end()

    def forget(self) -> None:
        """Let go in a forked child: the workers belong to its parent."""
        self.lock = threading.Lock()
        self.workers.forget()

    def _exchange(
        self,
        messages: Sequence[bytes],
        source_map: SourceMap | None = None,
        interrupts: Interrupts | None = None,
    ) -> list[Message]:
        round_trip = RoundTrip(self.workers, messages, self._timeout)
        try:
            round_trip.start()
            round_trip.wait()
        except BaseException:
            self._finish(round_trip, interrupts)
            raise
        if round_trip.has_failed:
            self._fail(round_trip, source_map)
        return [answer for answer in round_trip.answers if answer is not None]

    def _finish(self, round_trip: RoundTrip, interrupts: Interrupts | None) -> None:
        """After an exception of a signal's handler: let the workers finish, or end them."""
        is_enough = interrupts is None or interrupts.is_enough
        try:
            if round_trip.is_waiting and not is_enough:
                round_trip.wait()
        finally:
            if round_trip.has_failed or not round_trip.is_done:
                times = " three times" if is_enough else ""
                self._end(f"it was interrupted{times} in the middle of a program")

    def _describe_interrupt(self, interrupts: int, source_map: SourceMap | None) -> str:
        """Return what an interrupt does now, and what the next one would."""
        place = faults.locate(*self.workers.progress.read(0), source_map)
        if interrupts == 1:
            return (
                f"Ctrl-C waits for {_count(self.size, 'worker')} (rank 0 is {place}), so that no "
                f"array is lost; press it again to read what ending them costs"
            )
        return (
            f"one more Ctrl-C ends {_count(self.size, 'worker')} (rank 0 is {place}), and with "
            f"them {_count(self._count_arrays(), 'array')}"
        )

    def _fail(self, round_trip: RoundTrip, source_map: SourceMap | None) -> NoReturn:
        """Raise the error for an exchange that went wrong; end all that cannot go on."""
        is_fine = False
        try:
            round_trip.drain(PATIENCE)
            self.check()  # another thread may have closed the pool
            found = faults.find(round_trip, source_map, self._timeout)
            can_go_on = self._has_started and round_trip.is_done and not round_trip.ended
            is_fine = can_go_on and self._is_synchronized()
        finally:
            if not is_fine:
                self._end("a worker failed")
        outcome = "all workers go on" if is_fine else _describe_rest(self.size, found)
        error = BackendError(faults.describe(found, self.size, outcome))
        if not is_fine:
            self.end_reason = str(error)
        for fault in found:
            if fault.details:
                error.add_note(f"On rank {fault.rank}:\n{fault.details}")
        raise error

    def _is_synchronized(self) -> bool:
        """Whether all workers have issued the same collectives, and these still work."""
        for action in ("count", "meet"):
            message = encode({"do": action, "drop": []})
            round_trip = RoundTrip(self.workers, [message] * self.size, self._timeout)
            round_trip.start()
            round_trip.drain(CHECK)
            if round_trip.has_failed or not round_trip.is_done:
                return False
            if action == "count" and not _agree(round_trip):
                return False
        return True

    def _end(self, reason: str) -> None:
        if self.end_reason is None:
            self.end_reason = reason
        self.workers.end()


def _describe_rest(size: int, found: Sequence[faults.Fault]) -> str:
    rest = size - len({fault.rank for fault in found})
    if rest == 1:
        return "the other worker was stopped"
    return f"{rest} other workers were stopped" if rest else "no worker is left"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _agree(round_trip: RoundTrip) -> bool:
    """Whether each group counts the same collectives on all of its ranks."""
    counts: dict[str, int] = {}
    for answer in round_trip.answers:
        assert answer is not None
        for group, count in answer.header["counts"].items():
            if counts.setdefault(group, count) != count:
                return False
    return True
