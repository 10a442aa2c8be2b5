"""The processes of one launch: started, looked after, killed with all they have started.

Every process gets a session, and so a process group, of its own: one signal reaches its children
too, and the terminal's Ctrl-C reaches the launcher alone, which then stops all in order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mithril.errors import BackendError
from mithril.plugins.launch import Command
from mithril.runtime.launch import watchdog
from mithril.runtime.launch.lines import Relay

DRAIN = 1.0
"""Seconds for the last output once all are dead: a process that left its group may hold a pipe."""


@dataclass(slots=True)
class Member:
    """A process of the job. `code` is its exit code, or minus the signal that ended it."""

    name: str
    is_service: bool
    process: subprocess.Popen[bytes]
    started: float
    seconds: float = 0.0
    code: int | None = None

    def look(self) -> bool:
        """Return whether it has ended since the last look."""
        if self.code is not None:
            return False
        self.code = self.process.poll()
        self.seconds = time.monotonic() - self.started
        return self.code is not None


class Job:
    """The running processes, the relay of their output, and the watchdog over both.

    As a context: what is left is killed when it is left, whatever the reason. The folder of the
    job's files goes, too, if there is one.
    """

    def __init__(
        self, commands: Sequence[Command], output: int, errors: int, folder: str = ""
    ) -> None:
        self._folder = folder
        self._commands = commands
        self._targets = (output, errors)
        self._mark = uuid.uuid4().hex
        self._members: list[Member] = []
        self.relay = Relay()

    def __enter__(self) -> Job:
        self._watchdog = _start_watchdog(self._mark, self._folder)
        try:
            for command in self._commands:
                self._start(command)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def running(self) -> list[Member]:
        """The processes that had not ended at the last look; services serve these."""
        return [member for member in self._alive if not member.is_service]

    @property
    def is_watched(self) -> bool:
        """Whether the watchdog is there: without it, a killed launcher would leave processes."""
        return self._watchdog.poll() is None

    def look(self) -> list[Member]:
        """Return the processes that have ended since the last look, and kill what they left."""
        ended = [member for member in self._members if member.look()]
        for member in ended:
            watchdog.kill_group(member.process.pid)
            # From now on the system may give the number to another process.
            self._tell(f"-{member.process.pid}\n")
        return ended

    def signal(self, number: int) -> None:
        """Send a signal to all running processes and their children, and to no service."""
        for member in self.running:
            watchdog.kill_group(member.process.pid, number)

    def kill(self) -> None:
        """Kill all that is left, wherever it hid, and pass on the last output."""
        for member in self._alive:
            watchdog.kill_group(member.process.pid)
        watchdog.kill_marked(self._mark)
        deadline = time.monotonic() + DRAIN
        while self.relay.has_sources and time.monotonic() < deadline:
            self.relay.pump(0.05)
        for member in self._alive:
            member.process.wait()
            member.look()

    @property
    def _alive(self) -> list[Member]:
        return [member for member in self._members if member.code is None]

    def _start(self, command: Command) -> None:
        environment = _environment(command, self._mark)
        try:
            process = subprocess.Popen(
                command.argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise BackendError(
                f"{command.name} cannot be started; {command.argv[0]}: {error.strerror}"
            ) from error
        is_service = bool(command.service)
        self._members.append(Member(command.name, is_service, process, time.monotonic()))
        self._tell(f"+{process.pid}\n")
        prefix = command.prefix.encode()
        for source, target in zip((process.stdout, process.stderr), self._targets, strict=True):
            assert source is not None
            self.relay.add(source, target, prefix)

    def _tell(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        # Where the watchdog is gone, `is_watched` says so, and the job is stopped.
        with suppress(BrokenPipeError):
            self._watchdog.stdin.write(line.encode())

    def _end(self) -> None:
        self.kill()
        self.relay.close()
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()


def _start_watchdog(mark: str, folder: str) -> subprocess.Popen[bytes]:
    """Start the watchdog where nothing meant for a launch reaches it: no terminal, no mark."""
    kept = {name: value for name, value in os.environ.items() if name != watchdog.MARK}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), mark, folder],
        env=kept,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )


def _environment(command: Command, mark: str) -> Mapping[str, str]:
    # Inside another launch the marks of both are kept, so that either can find the process.
    marks = "/".join(filter(None, (os.environ.get(watchdog.MARK), mark)))
    # Python holds lines back where its output is a pipe; here they shall show at once.
    return {**os.environ, "PYTHONUNBUFFERED": "1", **command.environment, watchdog.MARK: marks}
