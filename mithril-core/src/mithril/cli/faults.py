"""Where a plugin's own code failed: the last frames of a traceback that lie inside it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from mithril.plugins.discover import Entry

FRAMES = 5


def list_frames(entry: Entry, error: BaseException) -> Iterator[str]:
    """Yield the last frames of a traceback that lie inside a plugin, then its error."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    root = locate(entry)
    inside = [frame for frame in frames if root and Path(frame.filename).is_relative_to(root)]
    if inside:
        yield f"Traceback inside {entry.point.module} (last {FRAMES} frames at most):"
        yield from "".join(traceback.format_list(inside[-FRAMES:])).splitlines()
    yield from "".join(traceback.format_exception_only(error)).splitlines()


def locate(entry: Entry) -> Path | None:
    """Return where a plugin's top package lies; its module is not imported for it."""
    found = find_spec(entry.point.module.partition(".")[0])
    if found is None or found.origin is None:
        return None
    path = Path(found.origin)
    return path.parent if found.submodule_search_locations else path
