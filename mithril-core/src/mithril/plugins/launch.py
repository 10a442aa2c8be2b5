"""What `mithril launch` asks of a backend, and what the backend answers: plain data, checked here.

The backend says which commands make one job on this machine; the core starts, supervises and stops
them. A request that exists is one that makes sense, so a backend need not check it again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from mithril.errors import OptionError

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):(?P<port>\d{1,5})")
LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What the user asked `mithril launch` to start.

    Args:
        script: the Python file to run.
        arguments: what the script gets on its command line.
        processes: how many processes each machine runs.
        nodes: how many machines take part.
        node_rank: which of them this one is, counted from 0.
        coordinator: `HOST:PORT` at which all processes meet. None on a single machine: the backend
            then chooses a loopback address, and nothing may listen beyond it.
        folder: where the backend puts files of the job. `mithril launch` gives an empty one, which
            is removed with all that is in it when the job has ended, even if the launcher is
            killed. Empty for the system's folder for temporary files, where they stay.

    Raises:
        OptionError: a number is out of range, or the coordinator is absent or no address.

    >>> request = LaunchRequest("train.py", ("--lr", "0.1"), processes=2)
    >>> request.total, list(request.ranks), request.argv[1:]
    (2, [0, 1], ('train.py', '--lr', '0.1'))
    """

    script: str
    arguments: tuple[str, ...] = ()
    processes: int = 1
    nodes: int = 1
    node_rank: int = 0
    coordinator: str | None = None
    folder: str = ""

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise OptionError(f"-n {self.processes} starts no process; give at least 1")
        if self.nodes < 1:
            raise OptionError(f"--nodes {self.nodes} is no machine; give at least 1")
        if not 0 <= self.node_rank < self.nodes:
            raise OptionError(
                f"--node-rank {self.node_rank} is none of {self.nodes} nodes; "
                f"give 0 to {self.nodes - 1}, or a larger --nodes"
            )
        if self.nodes > 1 and self.coordinator is None:
            raise OptionError(
                f"--nodes {self.nodes} needs a place where they meet; give the same "
                f"--coordinator HOST:PORT on each, with a free port of node 0"
            )
        if self.coordinator is not None and not _is_address(self.coordinator):
            raise OptionError(
                f"--coordinator '{self.coordinator}' is not HOST:PORT with a port from 1 to "
                f"{LAST_PORT}; write it like 10.0.0.1:29500 or [fd00::1]:29500"
            )

    @property
    def total(self) -> int:
        """The number of processes of all machines."""
        return self.nodes * self.processes

    @property
    def ranks(self) -> range:
        """The numbers of this machine's processes among all."""
        return range(self.node_rank * self.processes, (self.node_rank + 1) * self.processes)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command that runs the script with the Python that runs Mithril."""
        return (sys.executable, self.script, *self.arguments)


@dataclass(frozen=True, slots=True)
class Command:
    """One process to start.

    Args:
        argv: the program and its arguments; no shell sees them.
        environment: variables to set beside those `mithril launch` itself has.
        rank: its number among all processes, which its output lines and messages show. None where
            the command starts the ranks itself (a framework's own launcher): its lines pass as
            they are.
        service: what it does for the ranks where it is none of them, as messages call it. It runs
            until all ranks have ended and is killed then; a job whose service ends is stopped.

    Raises:
        OptionError: it is a rank and a service.

    >>> Command(("python", "train.py"), {"RANK": "1"}, rank=1).name
    'rank 1'
    >>> Command(("python", "meet.py"), service="meeting place").name
    'meeting place'
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None
    service: str = ""

    def __post_init__(self) -> None:
        if self.service and self.rank is not None:
            raise OptionError(
                f"Command is rank {self.rank} and the service '{self.service}'; give one of them"
            )

    @property
    def name(self) -> str:
        """What messages call it."""
        if self.service:
            return self.service
        return f"'{self.argv[0]}'" if self.rank is None else f"rank {self.rank}"

    @property
    def prefix(self) -> str:
        """What stands before each line that it prints."""
        if self.service:
            return f"[{self.service}] "
        return "" if self.rank is None else f"[{self.rank}] "


def free_port() -> int:
    """Return a port of the loopback address that nobody uses now.

    Another program can take it before it is used; who uses it tries another one then.

    >>> 0 < free_port() <= LAST_PORT
    True
    """
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 1 <= int(match["port"]) <= LAST_PORT
