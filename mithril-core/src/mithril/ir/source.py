"""Source: a line of the user's code, and the search for it, outward from this package."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path, PurePath

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_CALLS_COMMANDS = "typer"


@dataclass(frozen=True, slots=True)
class Source:
    """A place in the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"


def user_source() -> Source | None:
    """Return the file and line that called into `mithril`, None when nothing or a command did."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            caller = frame.f_globals.get("__name__", "").partition(".")[0]
            is_command = caller == _CALLS_COMMANDS
            return None if is_command else Source(frame.f_code.co_filename, frame.f_lineno)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def at(source: Source | None) -> str:
    """Return ` (file:line)` for a message, or nothing when the place is unknown."""
    return f" ({source})" if source else ""
