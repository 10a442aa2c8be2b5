"""The worker processes of a pool: starts them together, ends them together, leaves none behind.

They are started with `Popen`, so a user's script needs no `__main__` guard and is not run again.
Workers inherit all that they share with the controller; none of it has a name in the file system.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from mithril.spi import BackendError

from mithril_torch.executors.pool.memory import Arena, Progress, anonymous_file
from mithril_torch.executors.pool.messages import encode

PROC = Path("/proc")


class WorkerProcesses:
    """`size` processes, a socket to each, and the memory that they share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: list[socket.socket] = []
        self.arena = Arena(anonymous_file())
        self.progress = Progress(anonymous_file(), size)
        self._store, self._folder = _rendezvous()
        self._over = threading.Event()
        self._spawner: threading.Thread | None = None

    def start(self) -> None:
        """Start the processes; they wait for their `setups`.

        Raises:
            BackendError: the system does not let a process start.
            Exception: whatever else went wrong in the thread that starts them.
        """
        failures: list[Exception] = []
        started = threading.Event()

        def spawn() -> None:
            # A child inherits this: Ctrl-C must not end one that does not ignore it yet.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                while len(self.processes) < self.size and not self._over.is_set():
                    self._spawn()
            except Exception as error:  # whatever it is, somebody waits
                failures.append(error)
            finally:
                started.set()
            # Linux ends the workers when the thread that started them ends, so this one stays.
            self._over.wait()

        self._spawner = threading.Thread(target=spawn, daemon=True, name="mithril workers")
        self._spawner.start()
        started.wait()
        for error in failures:
            if not isinstance(error, OSError):
                raise error
            raise BackendError(
                f"Worker pool of {self.size} cannot start its processes; {sys.executable}: "
                f"{error.strerror}; close other programs, or use fewer devices"
            ) from error

    def setups(self, settings: dict[str, Any]) -> list[bytes]:
        """Return the first message to each worker."""
        store, path = self._store
        shared = {
            **settings,
            "size": self.size,
            "arena": self.arena.descriptor,
            "progress": self.progress.descriptor,
            "store": path if store is None else f"/proc/self/fd/{store}",
            "folder": self._folder,
        }
        return [encode({**shared, "rank": rank}) for rank in range(self.size)]

    def kill(self) -> None:
        """Kill all processes; whoever waits for one of them then sees its end."""
        for process in self.processes:
            process.kill()

    def end(self) -> None:
        """Kill all processes, wait for them, and let go of all that was shared.

        It may be called again: after an interrupt it goes on where it was.
        """
        self._over.set()
        if self._spawner is not None:
            self._spawner.join()
        self.kill()
        for process in self.processes:
            process.wait()
        self._let_go()

    def forget(self) -> None:
        """Let go in a forked child: the processes belong to its parent."""
        self._folder = None
        self._let_go()

    def is_stopped(self, rank: int) -> bool:
        """Whether a process is held by SIGSTOP."""
        pid = self.processes[rank].pid
        if PROC.is_dir():
            try:
                stat = (PROC / str(pid) / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                return False  # it has ended
            return stat.rpartition(")")[2].split()[0] == "T"
        shown = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return shown.stdout.startswith("T")

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        store, _ = self._store
        shared = [theirs.fileno(), self.arena.descriptor, self.progress.descriptor]
        module = "mithril_torch.executors.pool.worker"
        with theirs:
            self.sockets.append(ours)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(os.getpid())],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[*shared, store] if store is not None else shared,
            )
        self.processes.append(process)
        ours.setblocking(False)

    def _let_go(self) -> None:
        for channel in self.sockets:
            channel.close()
        self.arena.close()
        self.progress.close()
        (store, _), self._store = self._store, (None, "")
        if store is not None:
            os.close(store)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _rendezvous() -> tuple[tuple[int | None, str], str | None]:
    """Return where the workers meet: an inherited file without a name, or one in a new folder."""
    if hasattr(os, "memfd_create") and PROC.is_dir():
        return (anonymous_file(), ""), None
    folder = tempfile.mkdtemp(prefix="mithril-pool-")
    return (None, str(Path(folder) / "store")), folder


def _environment() -> dict[str, str]:
    """Return the environment of a worker: imports as here, sockets on loopback only."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    # Python itself passes over what is no text, too.
    paths = [path or str(Path.cwd()) for path in sys.path if isinstance(path, str)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }
