r"""Passes the output of several processes on by whole lines, each with the name of its process.

Bytes go through as they are; a line ends at a newline, or at a carriage return (a progress bar),
which becomes a newline, as lines of several processes cannot overwrite each other.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import time
from typing import IO

CHUNK = 1 << 16
LONGEST = 1 << 20
"""A line with more bytes is passed on in pieces: what never ends must not fill the memory."""
_END = re.compile(rb"\r\n?|\n")


class Lines:
    r"""Cuts a stream of bytes into prefixed lines.

    >>> lines = Lines(b"[1] ")
    >>> lines.add(b"loss 2"), lines.add(b".3\nstep"), lines.rest()
    (b'', b'[1] loss 2.3\n', b'[1] step\n')
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._pending = bytearray()

    def add(self, data: bytes) -> bytes:
        """Take bytes and return the lines that are complete now."""
        # The pending bytes have no end of line but maybe a last "\r", so only that is read again.
        start = max(len(self._pending) - 1, 0)
        self._pending += data
        lines, done = [], 0
        for end in _END.finditer(self._pending, start):
            # A carriage return at the very end may be the first half of "\r\n".
            if end[0] == b"\r" and end.end() == len(self._pending):
                break
            # A progress bar begins with a carriage return: before it there is no line to show.
            if end[0] != b"\r" or end.start() > done:
                lines.append(bytes(self._pending[done : end.start()]))
            done = end.end()
        del self._pending[:done]
        while len(self._pending) > LONGEST:
            lines.append(bytes(self._pending[:LONGEST]))
            del self._pending[:LONGEST]
        return b"".join(self._prefix + line + b"\n" for line in lines)

    def rest(self) -> bytes:
        """Return what came after the last line, as a line."""
        line = bytes(self._pending.removesuffix(b"\r"))
        self._pending.clear()
        return self._prefix + line + b"\n" if line else b""


class Relay:
    """Reads the output of all processes and writes their lines to files of the launcher.

    `is_closed` turns true when nobody reads the launcher's own output any more; what comes then is
    dropped, so that the processes are not blocked while they are stopped.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.is_closed = False

    @property
    def has_sources(self) -> bool:
        """Whether some process can still write."""
        return bool(self._selector.get_map())

    def add(self, source: IO[bytes], target: int, prefix: bytes) -> None:
        """Pass lines of `source` on to the descriptor `target`; the relay closes `source`."""
        self._selector.register(source, selectors.EVENT_READ, (source, Lines(prefix), target))

    def pump(self, seconds: float) -> bool:
        """Pass on what there is, waiting so long for the first of it; return whether any was."""
        if not self.has_sources:
            time.sleep(seconds)
            return False
        ready = self._selector.select(seconds)
        for key, _ in ready:
            source, lines, target = key.data
            data = os.read(key.fd, CHUNK)
            if data:
                self._write(target, lines.add(data))
            else:
                self._end(source, lines, target)
        return bool(ready)

    def close(self) -> None:
        """Show what is left of unfinished lines, and let go of every source."""
        for key in list(self._selector.get_map().values()):
            self._end(*key.data)
        self._selector.close()

    def _end(self, source: IO[bytes], lines: Lines, target: int) -> None:
        self._selector.unregister(source)
        source.close()
        self._write(target, lines.rest())

    def _write(self, target: int, data: bytes) -> None:
        left = memoryview(data)
        while left and not self.is_closed:
            try:
                left = left[os.write(target, left) :]
            except BlockingIOError:  # whoever started the launcher made its output non-blocking
                select.select([], [target], [])
            except BrokenPipeError:
                self.is_closed = True
