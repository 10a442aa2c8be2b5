"""The store of a job on MLX: texts by key, which rank 0 keeps and serves beside MLX's collectives.

MLX has collectives only, which nobody who waits in one can leave. So rank 0 listens at one port
more: on the loopback address where all processes are of one machine, else at the address at which
it meets the others anyway. Requests are lines of JSON, and begin with what only the job knows.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Condition, Thread
from typing import Any, Protocol
from zlib import crc32

import mlx.core as mx
from mithril.spi import BackendError

LOOPBACK = "127.0.0.1"
REACHED = 10.0
"""Seconds in which rank 0 has to be reached."""
PATIENCE = 60.0
"""Seconds in which it has to answer, besides those for which it waits for a text: a call of another
library, such as one that reads a file, may leave its threads no time."""
SILENCE = 10.0
"""Seconds after which who has connected and asks nothing is left."""
LONGEST = 512
"""Characters of where rank 0 listens and of its token."""
LARGEST = 1 << 24
"""Bytes of a request that are read; what only starts like one may have no end."""
_OF_STRANGERS = (OSError, RecursionError, TypeError, ValueError)
"""What comes of a request whose sender is gone, or is none of the job."""
_DRAWN = 1 << 40
"""Bit of a hardware address that each process has drawn for itself, where the machine has none."""


class Texts(Protocol):
    """Texts by key; see `mithril.spi.JobStore`."""

    def set(self, key: str, text: str) -> None:
        """Write a text under a key."""

    def get(self, key: str, seconds: float) -> str | None:
        """Return the text under a key; None if there is none after so many seconds."""


_opened: dict[str, Texts | None] = {}


def open_texts(library: str, world: mx.distributed.Group) -> Texts | None:
    """Return the texts of a job; every process has to call this, the first time they exchange.

    Args:
        library: what exchanges data.
        world: all processes.

    Returns:
        None, in all of them, where one cannot reach rank 0.
    """
    if library not in _opened:
        _opened[library] = _meet(library, world)
    return _opened[library]


def _meet(library: str, world: mx.distributed.Group) -> Texts | None:
    """Have rank 0 serve texts, and tell the others where."""
    is_main = world.rank() == 0
    own = KeptTexts()
    host = _find_host(library, _share(world, _hash_machine()))
    line = json.dumps(_serve(own, host)) if is_main else ""
    place = json.loads(bytes(_broadcast(world, line.encode())))
    texts: Texts = own if is_main else ServedTexts(*place)
    try:
        texts.get("", 0.0)
        is_reached = place[1] != 0
    except BackendError:
        is_reached = False
    return texts if all(_share(world, int(is_reached))) else None


@dataclass(eq=False)
class KeptTexts:
    """The texts themselves, in rank 0."""

    texts: dict[str, str] = field(default_factory=dict)
    changed: Condition = field(default_factory=Condition)

    def set(self, key: str, text: str) -> None:
        """Write a text under a key."""
        with self.changed:
            self.texts[key] = text
            self.changed.notify_all()

    def get(self, key: str, seconds: float) -> str | None:
        """Return the text under a key; None if there is none after so many seconds."""
        with self.changed:
            self.changed.wait_for(lambda: key in self.texts, seconds)
            return self.texts.get(key)


@dataclass(frozen=True)
class ServedTexts:
    """The same from another process.

    Args:
        host: where rank 0 listens.
        port: of that.
        token: what shows that a request is of this job.
    """

    host: str
    port: int
    token: str

    def set(self, key: str, text: str) -> None:
        """Write a text under a key.

        Raises:
            BackendError: rank 0 cannot be reached.
        """
        self._ask([self.token, key, text, 0.0])

    def get(self, key: str, seconds: float) -> str | None:
        """Return the text under a key; None if there is none after so many seconds.

        Raises:
            BackendError: rank 0 cannot be reached.
        """
        found: str | None = self._ask([self.token, key, None, seconds])
        return found

    def _ask(self, request: list[Any]) -> Any:
        try:
            place = self.host, self.port
            with socket.create_connection(place, REACHED) as link, link.makefile("rw") as file:
                link.settimeout(PATIENCE + request[-1])
                file.write(json.dumps(request) + "\n")
                file.flush()
                return json.loads(file.readline())
        except (OSError, ValueError) as error:
            raise BackendError(
                f"rank 0, through which the processes of the job compare plans, cannot be reached "
                f"at {self.host}:{self.port}: {error}; see what that one says"
            ) from error


def _serve(kept: KeptTexts, host: str) -> tuple[str, int, str]:
    """Serve texts to the other processes until this one ends; return where, and the token.

    Port 0 is nowhere: the system does not let this process listen there.
    """
    token = secrets.token_hex(16)

    class Handler(StreamRequestHandler):
        timeout = SILENCE

        def handle(self) -> None:
            with suppress(*_OF_STRANGERS):
                shown, key, text, seconds = json.loads(self.rfile.readline(LARGEST))
                if not secrets.compare_digest(str(shown).encode(), token.encode()):
                    return
                if text is not None:
                    kept.set(key, text)
                answer = kept.get(key, seconds)
                self.wfile.write(json.dumps(answer).encode() + b"\n")

    class Server(ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, 0), Handler)
    except OSError:
        return host, 0, token
    Thread(target=server.serve_forever, daemon=True).start()
    return host, server.server_address[1], token


def _find_host(library: str, machines: list[int]) -> str:
    """Return the address of rank 0 at which the others reach it."""
    if len({*machines}) == 1:
        return LOOPBACK
    with suppress(OSError, KeyError, ValueError, IndexError):
        if library == "ring":
            return _host_of(json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text())[0][0])
        if library == "jaccl":
            return _host_of(os.environ["MLX_JACCL_COORDINATOR"])
        return socket.gethostbyname(socket.gethostname())
    return LOOPBACK


def _host_of(place: str) -> str:
    return place.rpartition(":")[0].strip("[]")


def _hash_machine() -> int:
    """Return a number that processes have in common if they are of one machine."""
    node = uuid.getnode()
    if node & _DRAWN:
        node = 0
    return crc32(f"{socket.gethostname()} {node}".encode()) >> 1


def _share(world: mx.distributed.Group, number: int) -> list[int]:
    """Return the numbers that all processes give."""
    own = mx.array([number], mx.int32)
    numbers: Any = mx.distributed.all_gather(own, group=world, stream=mx.cpu).tolist()
    return [*numbers]


def _broadcast(world: mx.distributed.Group, text: bytes) -> list[int]:
    """Return in all processes the characters that one of them gives, the others none."""
    own = mx.array([*text, *[0] * (LONGEST - len(text))], mx.int32)
    told: Any = mx.distributed.all_sum(own, group=world, stream=mx.cpu).tolist()
    return [x for x in told if x]


__all__ = ["ServedTexts", "Texts", "open_texts"]
