"""Where an error of a plugin was raised: the line, that of its package, and the shared kernel's.

Core's own modules stand between a plugin and itself, its kernels above all. What an author can mend
is outside of them, or is what a shared kernel asks for: the expression that it was computing.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterator
from typing import NamedTuple

CORE = "mithril"
SHARED = "mithril.engine.standard."
BETWEEN = ("", "mithril.engine.checks", "mithril.engine.lockstep", "mithril.engine.written")
"""What calls kernels: lines of theirs, and of programs that were written, say nothing."""
SHOWN = 60
"""Characters of an expression that are shown."""


class Place(NamedTuple):
    """A line on the way to an error.

    Args:
        module: its full name.
        at: file and line, for messages.
        asks: what was being computed there, as it is written.
    """

    module: str
    at: str
    asks: str

    @property
    def package(self) -> str:
        """The package of the line."""
        return self.module.partition(".")[0]


class Raised(NamedTuple):
    """Where an error was raised.

    Args:
        at: the line that raised it, and the last one of the plugin's package if that is another.
        shared: the last line of a shared kernel on the way; None if there is none.
    """

    at: str
    shared: Place | None = None


def find_raised(error: BaseException, package: str = "") -> Raised:
    """Return where an error was raised; an empty place where no line is known.

    Args:
        error: what a plugin raised.
        package: of the plugin; by default that of the first line that is not of the core's.
    """
    places = [place for place in _list_places(error) if place.module not in BETWEEN]
    others = [place for place in places if place.package != CORE]
    package = package or next((place.package for place in others), "")
    own = next((place.at for place in reversed(others) if place.package == package), "")
    shared = next((place for place in reversed(places) if place.module.startswith(SHARED)), None)
    at = places[-1].at if places else ""
    return Raised(f"{at}, called at {own}" if own not in ("", at) else at, shared)


def _list_places(error: BaseException) -> Iterator[Place]:
    lines = traceback.extract_tb(error.__traceback__)
    for (frame, _), line in zip(traceback.walk_tb(error.__traceback__), lines, strict=True):
        at = f"{line.filename.rpartition('/')[2]}:{line.lineno}"
        yield Place(str(frame.f_globals.get("__name__") or ""), at, _asks(line))


def _asks(line: traceback.FrameSummary) -> str:
    """Return the expression that was being computed; its first line if there are several."""
    text = linecache.getline(line.filename, line.lineno or 0).rstrip("\n")
    is_one = line.end_lineno in (None, line.lineno)
    text = text[line.colno or 0 : line.end_colno if is_one else None].strip()
    return text if is_one and len(text) <= SHOWN else f"{text[:SHOWN].rstrip()} …"
