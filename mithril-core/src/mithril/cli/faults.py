"""Where a plugin's own code failed, and what one says of itself that may fail."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mithril.errors import BackendError
from mithril.plugins.discover import Entry

if TYPE_CHECKING:
    from mithril.engine import Engine

FRAMES = 5


def list_frames(entry: Entry, error: BaseException) -> Iterator[str]:
    """Yield the last frames of a traceback that lie inside a plugin, then its error."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    root = locate(entry)
    inside = [frame for frame in frames if root and Path(frame.filename).is_relative_to(root)]
    if inside:
        yield f"Traceback inside {name_module(entry)} (last {FRAMES} frames at most):"
        yield from "".join(traceback.format_list(inside[-FRAMES:])).splitlines()
    yield from "".join(traceback.format_exception_only(error)).splitlines()


def name_module(entry: Entry) -> str:
    """Return the module of an entry point, which may be none that can be written in Python."""
    return entry.point.value.partition(":")[0].strip()


def read_facts(engine: Engine) -> dict[str, str]:
    """Return what an engine says of itself.

    Raises:
        BackendError: it cannot.
    """
    try:
        return {str(label): str(text) for label, text in engine.facts.items()}
    except Exception as error:
        raise BackendError(
            f"engine of backend '{engine.name}' cannot say facts; {type(error).__name__}: {error}; "
            f"mend its property facts"
        ) from error


def locate(entry: Entry) -> Path | None:
    """Return where a plugin's top package lies; its module is not imported for it."""
    found = find_spec(name_module(entry).partition(".")[0])
    if found is None or found.origin is None:
        return None
    path = Path(found.origin)
    return path.parent if found.submodule_search_locations else path
