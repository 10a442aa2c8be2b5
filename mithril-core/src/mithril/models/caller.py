"""Where in the user's code something was written: the nearest frame outside this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mithril.ir import Source

_HERE = str(Path(__file__).parent) + os.sep


def user_source() -> Source | None:
    """Return the file and line that called into `mithril.models`, or None when nothing did."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HERE):
            return Source(frame.f_code.co_filename, frame.f_lineno)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def at(source: Source | None) -> str:
    """Return ` (file:line)` for a message, or nothing when the place is unknown."""
    return f" ({source})" if source else ""
