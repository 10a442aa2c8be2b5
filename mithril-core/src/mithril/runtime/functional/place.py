"""Where in the user's code something is computed: the nearest frame outside this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mithril
from mithril.ir import Source

_PACKAGE = str(Path(mithril.__file__).parent) + os.sep


def user_line() -> Source | None:
    """Return the file and line that called into `mithril`, None when nothing did."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return Source(frame.f_code.co_filename, frame.f_lineno)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
