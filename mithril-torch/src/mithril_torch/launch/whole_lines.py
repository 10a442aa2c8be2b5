"""Shows what ranks print by whole lines.

torchrun follows the file that each rank prints into, and passes on what it finds there: where a
rank has written half a line so far, the words of another one stand behind it.
"""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from io import IncrementalNewlineDecoder
from pathlib import Path
from threading import Event
from typing import BinaryIO, TextIO

from torch.distributed.elastic.multiprocessing import tail_log

CHUNK = 1 << 16
LONGEST = 1 << 20
"""A line with more characters is passed on in pieces: what never ends must not fill the memory."""


def show_whole_lines() -> None:
    """Have torchrun in this process pass on whole lines only."""
    tail_log.tail_logfile = follow  # there is no setting for it


def follow(
    header: str,
    file: str,
    dst: TextIO,
    finished: Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Write the lines of a file as they are completed, the last one when its writer has ended.

    Args:
        header: stands before each line.
        file: what a process writes into; it need not be there yet.
        dst: where lines go.
        finished: set when nobody writes into the file any more.
        interval_sec: seconds between two looks at the file.
        log_line_filter: which lines are shown; by default all.
    """
    while not Path(file).exists():
        if finished.is_set():
            return
        time.sleep(interval_sec)
    with Path(file).open("rb") as source:
        for line in _cut_lines(source, finished, interval_sec):
            if log_line_filter is None or log_line_filter(line):
                dst.write(f"{header}{line}\n")


def _cut_lines(source: BinaryIO, finished: Event, interval: float) -> Iterator[str]:
    """Yield each line of a growing file; a carriage return ends one, too."""
    text = IncrementalNewlineDecoder(getincrementaldecoder("utf-8")("replace"), translate=True)
    begun, is_over = "", False
    while not is_over:
        is_finished = finished.is_set()  # asked before reading: all was written by then
        found = source.read(CHUNK)
        is_over = is_finished and not found
        *lines, begun = (begun + text.decode(found, final=is_over)).split("\n")
        yield from lines
        while len(begun) > LONGEST:
            yield begun[:LONGEST]
            begun = begun[LONGEST:]
        if not found and not is_over:
            time.sleep(interval)
    if begun:
        yield begun


__all__ = ["follow", "show_whole_lines"]
