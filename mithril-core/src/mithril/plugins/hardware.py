"""Profiles of hardware that plugins bring: paths of TOML files, nothing is read here.

Modules of both groups of entry points may implement `mithril_hardware`. Each is loaded behind its
own guard, as backends are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

from mithril.errors import BackendError, kind_of
from mithril.plugins.discover import (
    CORE,
    GROUP,
    PLUGINS,
    describe_fault,
    is_allowed,
    is_fault,
    is_strict,
    list_points,
    package_of,
)
from mithril.plugins.manager import ask, load


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
    error: BaseException | None = None

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.path.name if self.fault else self.path.stem


def find_hardware_files() -> tuple[HardwareFile, ...]:
    """Return the files that installed plugins offer, sorted by package."""
    points = [*list_points(PLUGINS), *list_points(GROUP)]
    own = [point for point in points if package_of(point) != CORE and is_allowed(point.name)]
    ordered = sorted(own, key=lambda point: (package_of(point), point.name))
    return tuple(file for point in ordered for file in _ask(point))


def _ask(point: EntryPoint) -> Iterator[HardwareFile]:
    try:
        paths = list_paths(load(point))
    except BaseException as error:
        if not is_fault(error) or is_strict():
            raise
        yield HardwareFile(Path(point.name), package_of(point), describe_fault(error), error)
        return
    yield from (HardwareFile(path, package_of(point)) for path in paths)


def list_paths(plugin: object) -> list[Path]:
    """Return the paths of the profiles that a loaded plugin offers.

    Raises:
        BackendError: it offers something else.
        Exception: whatever the plugin raises.
    """
    return [_check_path(x) for given in ask(plugin, "mithril_hardware") for x in _check_list(given)]


def _check_list(given: object) -> list[object]:
    if not isinstance(given, list | tuple):
        raise BackendError(f"mithril_hardware returned {kind_of(given)}; return a list of paths")
    return list(given)


def _check_path(given: object) -> Path:
    if not isinstance(given, str | Path):
        raise BackendError(f"mithril_hardware offers {kind_of(given)}; return a list of paths")
    return Path(given)
