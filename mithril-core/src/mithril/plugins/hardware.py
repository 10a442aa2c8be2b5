"""Profiles of hardware that plugins bring: paths of TOML files, nothing is read here.

Two groups of entry points may implement `mithril_hardware`: `mithril.plugins`, for packages that
bring no backend, and `mithril.backends`. Each is loaded behind its own guard, as backends are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from mithril.errors import BackendError, kind_of
from mithril.plugins.discover import (
    CORE,
    GROUP,
    describe_fault,
    is_allowed,
    package_of,
    register,
)

PLUGINS = "mithril.plugins"


@dataclass(frozen=True, slots=True)
class HardwareFile:
    """A file that a package offers as a profile.

    Args:
        path: of the file; its stem is the profile's name. Of a plugin that could not be asked, the
            name of its entry point.
        package: the distribution that brings it.
        fault: what is wrong with the plugin; empty where nothing is.
        error: what the plugin raised.
    """

    path: Path
    package: str
    fault: str = ""
    error: Exception | None = None

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.path.name if self.fault else self.path.stem


def find_hardware_files() -> tuple[HardwareFile, ...]:
    """Return the files that installed plugins offer, sorted by package."""
    points = [*entry_points(group=PLUGINS), *entry_points(group=GROUP)]
    own = [point for point in points if package_of(point) != CORE and is_allowed(point.name)]
    ordered = sorted(own, key=lambda point: (package_of(point), point.name))
    return tuple(file for point in ordered for file in _ask(point))


def _ask(point: EntryPoint) -> Iterator[HardwareFile]:
    try:
        paths = [_check_path(x) for given in _list_offers(point) for x in given]
    except Exception as error:
        if os.environ.get("MITHRIL_STRICT") == "1":
            raise
        yield HardwareFile(Path(point.name), package_of(point), describe_fault(error), error)
        return
    yield from (HardwareFile(path, package_of(point)) for path in paths)


def _list_offers(point: EntryPoint) -> list[list[object]]:
    offered = register(point).hook.mithril_hardware()
    for given in offered:
        if not isinstance(given, list | tuple):
            raise BackendError(
                f"mithril_hardware returned {kind_of(given)}; return a list of paths"
            )
    return list(offered)


def _check_path(given: object) -> Path:
    if not isinstance(given, str | Path):
        raise BackendError(f"mithril_hardware offers {kind_of(given)}; return a list of paths")
    return Path(given)
