"""Supervises the processes of a job: all end well, or all are stopped and the culprit is named.

A rank whose peer has died may block for good, in code that neither an exception nor SIGTERM
reaches. So nothing is asked of the others: they get SIGTERM, a short grace, then SIGKILL.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from mithril.plugins.launch import Command
from mithril.runtime.launch.job import Job, Member

POLL = 0.05
"""Seconds between two looks at the processes while none of them writes."""
FROM_SIGNAL = 128
"""What a shell adds to the number of a signal to make it an exit code."""
_NAMES = {number.value: number.name for number in signal.Signals}
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: the exit code to pass on, and what to tell the user if it went wrong."""

    code: int
    text: str = ""


def supervise(
    commands: Sequence[Command],
    *,
    grace: float,
    folder: str = "",
    output: int = 1,
    errors: int = 2,
) -> Outcome:
    """Run commands side by side until all have ended, one has failed, or the user stops them.

    When it returns or raises, no process that it started is left, nor one that those started.

    Args:
        commands: what to run; their order is that in which they are started.
        grace: seconds between SIGTERM and SIGKILL for those that have to be stopped.
        folder: where the job has its files; removed at the end, even if this process is killed.
        output: the file descriptor to which what they print goes.
        errors: the same for what they print as errors.

    Raises:
        BackendError: a command cannot be started.

    >>> import sys
    >>> supervise([Command((sys.executable, "-c", "exit(3)"), rank=0)], grace=2.0).code
    3
    """
    started = time.monotonic()
    with _signals() as received, Job(commands, output, errors, folder) as job:
        failed = _watch(job, received)
        # Read before anything is stopped: what the stopping causes is not the cause.
        cause = _cause(job, received, failed, time.monotonic() - started)
        if cause is None:
            return Outcome(0)
        running = job.running
        _stop(job, grace, received)
    return Outcome(cause.code, f"{cause.text}{_describe_stopped(running)}")


def _watch(job: Job, received: Sequence[int]) -> list[Member]:
    """Pass on output until there is a reason to end; return the processes that failed."""
    while True:
        job.relay.pump(POLL)
        failed = [member for member in job.look() if member.code or member.is_service]
        if failed or received or job.relay.is_closed or not job.is_watched or not job.running:
            return failed


def _cause(
    job: Job, received: Sequence[int], failed: Sequence[Member], seconds: float
) -> Outcome | None:
    """Say why the job cannot go on, or None if all went well."""
    after = f"after {seconds:.1f} s"
    if failed:
        text = "; ".join(map(_epitaph, failed))
        return Outcome(_exit_code(failed[0].code or 0), text)
    if received:
        return Outcome(
            FROM_SIGNAL + received[0], f"{_signal_name(received[0])} ended the launch {after}"
        )
    if job.relay.is_closed:
        return Outcome(FROM_SIGNAL + signal.SIGPIPE, f"nobody reads the output any more, {after}")
    if job.running:
        return Outcome(1, f"the watchdog of this launch was killed {after}; start it again")
    return None


def _stop(job: Job, grace: float, received: Sequence[int]) -> None:
    """End all politely, then by force: after the grace, or when the user asks once more."""
    enough = 2 if received else 1
    deadline = time.monotonic() + grace
    job.signal(signal.SIGTERM)
    while job.running and time.monotonic() < deadline and len(received) < enough:
        job.relay.pump(POLL)
        job.look()
    job.kill()


def _epitaph(member: Member) -> str:
    code = member.code or 0
    how = f"with exit code {code}" if code >= 0 else f"by {_signal_name(-code)}"
    return f"{member.name} ended {how} (pid {member.process.pid}) after {member.seconds:.1f} s"


def _describe_stopped(running: Sequence[Member]) -> str:
    """Tell about the others: how many were stopped, and which of them only by force."""
    if not running:
        return ""
    count = len(running)
    forced = ", ".join(member.name for member in running if member.code == -signal.SIGKILL)
    how = f", {forced} with SIGKILL" if forced else ""
    others = "other 1 process was" if count == 1 else f"other {count} processes were"
    return f"; the {others} stopped{how}"


def _exit_code(code: int) -> int:
    """Return the exit code to pass on; a service that has ended well is a failure, too."""
    return FROM_SIGNAL - code if code < 0 else code or 1


def _signal_name(number: int) -> str:
    return _NAMES.get(number, f"signal {number}")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask to stop, instead of dying of them with processes running."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # One that is ignored stays so, as under nohup.
    heard = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Callable[[int, FrameType | None], object] | int | None]
    before = {number: signal.signal(number, receive) for number in heard}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
