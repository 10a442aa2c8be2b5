"""Which plugins are installed, and whether each can be used: nothing is opened, no fault spreads.

There are two groups of entry points: `mithril.backends`, a backend each, and `mithril.plugins`, for
all else that a package can bring (`extensions`). Modules are loaded one at a time, each behind its
own guard, so a fault in one plugin is a row of the list and never a failure of another. `survey`
loads none of them: it judges by what the metadata of packages say. Three variables steer it:

* `MITHRIL_PLUGINS=numpy,jax` allows only the plugins of these names (empty: none);
* `MITHRIL_BACKEND_JAX=some-package` settles which package gives `jax` when several claim it, and
  `MITHRIL_PLUGIN_ACME=…` the same for the group `mithril.plugins`;
* `MITHRIL_STRICT=1` raises a plugin's own error instead of calling it broken.

The core's own backends keep their names unless the second variable says otherwise; among others no
one is preferred in silence.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

from mithril.errors import BackendError, listing
from mithril.plugins.manager import ask, load
from mithril.plugins.requirements import Requirement, list_requirements
from mithril.plugins.spec import BACKEND_API, BackendSpec, check_specs

GROUP = "mithril.backends"
PLUGINS = "mithril.plugins"
CORE = "mithril-core"
NOTE_LENGTH = 200
NO_FAULTS = (KeyboardInterrupt, GeneratorExit)
"""What is no fault of a plugin's; all else is, `SystemExit` and what Rust panics with included."""
_KINDS = {GROUP: "backend", PLUGINS: "plugin"}
"""What an entry point of a group is called, and the middle of the variable that selects one."""


class Status(StrEnum):
    """What a user is told about a backend, or another plugin.

    `ready` to be used; `installed` with all that it requires, and not loaded yet; `missing` a
    package it needs; `incompatible` with this Mithril; `broken` in itself; a `duplicate` of a name
    that is taken; `blocked` by `MITHRIL_PLUGINS`.
    """

    ready = "ready"
    installed = "installed"
    missing = "missing"
    incompatible = "incompatible"
    broken = "broken"
    duplicate = "duplicate"
    blocked = "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry point and the judgement on it.

    `fact` says what is wrong and `remedy` what to do; both are empty where nothing is. `error` is
    what a broken one raised.
    """

    point: EntryPoint
    status: Status
    fact: str = ""
    remedy: str = ""
    error: BaseException | None = None

    @property
    def name(self) -> str:
        """The backend's or plugin's name."""
        return self.point.name

    @property
    def package(self) -> str:
        """The distribution that offers it."""
        return package_of(self.point)

    @property
    def package_version(self) -> str:
        """The version of that distribution."""
        return self.point.dist.version if self.point.dist else "0"

    @property
    def note(self) -> str:
        """What is wrong, and what to do."""
        return " · ".join(part for part in (self.fact, self.remedy) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEntry(Entry):
    """A backend and the judgement on it; `spec` is known if the plugin could be loaded."""

    spec: BackendSpec | None = None

    @property
    def framework(self) -> Requirement | None:
        """The first package it requires: by its spec, or else by its distribution's metadata."""
        if self.spec is not None:
            return next(map(Requirement.parse, self.spec.requires), None)
        if self.status in (Status.broken, Status.duplicate, Status.blocked):
            return None
        needs = list_requirements(self.point.dist)
        return next((need for need in needs if not _is_core(need)), None)


Judged = TypeVar("Judged", bound=Entry)
Judge = Callable[[EntryPoint], Judged]


def discover() -> tuple[BackendEntry, ...]:
    """Return every installed backend, loaded and judged, sorted by name and package."""
    return judge_all(GROUP, judge_backend, BackendEntry)


def survey() -> tuple[BackendEntry, ...]:
    """Return every installed backend as the metadata of packages have it, in the same order.

    No module of a plugin is imported but those of the core itself. What would fail as it is loaded
    or opened is `installed` all the same.
    """
    return judge_all(GROUP, _judge_unloaded, BackendEntry)


def find(name: str) -> BackendEntry | None:
    """Return the backend of a name, judged, or None; no other plugin is loaded.

    Of several packages that claim the name, the one in use is returned, else the first of them.
    """
    return find_in(GROUP, name, judge_backend, BackendEntry)


def names(group: str = GROUP) -> tuple[str, ...]:
    """Return the names of all entry points of a group; nothing is loaded."""
    return tuple(sorted(list_points(group).names))


def list_points(group: str) -> EntryPoints:
    """Return the entry points of a group; read again when something is installed or removed.

    To read the metadata of all that is installed takes 10 ms, and every plan that is made asks.
    """
    return _read_points(group, tuple((path, _find_change(path)) for path in sys.path))


@lru_cache(maxsize=8)
def _read_points(group: str, changes: tuple[tuple[str, int | None], ...]) -> EntryPoints:
    return entry_points(group=group)


def _find_change(path: str) -> int | None:
    """Return when a folder, or an archive, was changed last; None if there is none."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None


# ------------------------------------------------------------------ judging, for both groups


def judge_all(group: str, judge: Judge[Judged], kind: type[Judged]) -> tuple[Judged, ...]:
    """Return every entry point of a group, judged, sorted by name and package.

    Args:
        group: of entry points.
        judge: judges one whose name nothing speaks against.
        kind: of the judgements.
    """
    points = list_points(group)
    entries = (e for name in sorted(points.names) for e in _judge_name(points, name, judge, kind))
    return tuple(sorted(entries, key=lambda entry: (entry.name, entry.package)))


def find_in(group: str, name: str, judge: Judge[Judged], kind: type[Judged]) -> Judged | None:
    """Return the entry point of a name, judged, or None: the one in use, else the first of them."""
    entries = _judge_name(list_points(group), name, judge, kind)
    in_use = [entry for entry in entries if entry.status is not Status.duplicate]
    return next(iter([*in_use, *entries]), None)


def _judge_name(
    points: Iterable[EntryPoint], name: str, judge: Judge[Judged], kind: type[Judged]
) -> list[Judged]:
    """Judge the entry points that claim a name: at most one of them is in use."""
    claims = sorted((point for point in points if point.name == name), key=package_of)
    if not is_allowed(name):
        allowed = _comma_list(os.environ["MITHRIL_PLUGINS"])
        return [_report_blocked(point, allowed, kind) for point in claims]
    chosen = _choose(name, claims)
    return [
        judge(point) if point is chosen else _report_duplicate(point, claims, kind)
        for point in claims
    ]


def _choose(name: str, claims: Sequence[EntryPoint]) -> EntryPoint | None:
    if len(claims) == 1:
        return claims[0]
    wanted = os.environ.get(_variable(claims[0]), CORE) if claims else ""
    return next((point for point in claims if _normal(package_of(point)) == _normal(wanted)), None)


def guard(point: EntryPoint, judge: Judge[Judged], kind: type[Judged]) -> Judged:
    """Return the judgement on a plugin that is loaded for it; one that raises is broken.

    Args:
        point: its entry point.
        judge: loads and judges it.
        kind: of the judgement.

    Raises:
        Exception: whatever the plugin raises, with `MITHRIL_STRICT=1`.
    """
    try:
        return judge(point)
    except BaseException as error:
        if not is_fault(error) or is_strict():
            raise
        remedy = f"mithril {_KINDS[point.group]}s info {point.name}"
        fact = describe_fault(error)
        return kind(point=point, status=Status.broken, fact=fact, remedy=remedy, error=error)


def judge_metadata(point: EntryPoint, kind: type[Judged]) -> Judged | None:
    """Return what speaks against an entry point in its distribution's requirements, or None.

    Raises:
        BackendError: a requirement is not written as PEP 508 has them.
    """
    for need in list_requirements(point.dist):
        unmet = need.find_unmet()
        if unmet is None:
            continue
        if _is_core(unmet):
            fact = f"needs {unmet}, this mithril is {unmet.installed}"
            remedy = unmet.install_command
            return kind(point=point, status=Status.incompatible, fact=fact, remedy=remedy)
        return _report_missing(point, unmet, kind)
    return None


def judge_backend(point: EntryPoint) -> BackendEntry:
    """Return the judgement on a backend whose module is loaded for it."""
    return guard(point, _judge_loaded, BackendEntry)


def _judge_loaded(point: EntryPoint) -> BackendEntry:
    spec = load_spec(point)
    if spec.api[0] != BACKEND_API[0] or spec.api > BACKEND_API:
        return _report_incompatible(point, spec)
    needs = (Requirement.parse(text).find_unmet() for text in spec.requires)
    unmet = next((need for need in needs if need is not None), None)
    if unmet is not None:
        return _report_missing(point, unmet, BackendEntry, spec=spec)
    return BackendEntry(point=point, status=Status.ready, spec=spec)


def _judge_unloaded(point: EntryPoint) -> BackendEntry:
    if package_of(point) == CORE:
        return judge_backend(point)
    return guard(point, _judge_by_metadata, BackendEntry)


def _judge_by_metadata(point: EntryPoint) -> BackendEntry:
    found = judge_metadata(point, BackendEntry)
    return found or BackendEntry(point=point, status=Status.installed)


def load_spec(point: EntryPoint) -> BackendSpec:
    """Return the spec a plugin gives for its entry point.

    Raises:
        BackendError: it gives none, or a faulty one.
        Exception: whatever the plugin raises.
    """
    answers = ask(load(point), "mithril_backends")
    specs = [spec for offered in answers for spec in check_specs(offered)]
    for spec in specs:
        if spec.name == point.name:
            return spec
    raise BackendError(
        f"entry point '{point.name}' offers {listing(spec.name for spec in specs)}; implement "
        f"mithril_backends so that it returns a BackendSpec named '{point.name}'"
    )


def is_allowed(name: str) -> bool:
    """Return whether `MITHRIL_PLUGINS` allows the entry points of a name."""
    allowed = os.environ.get("MITHRIL_PLUGINS")
    return allowed is None or name in _comma_list(allowed)


def is_fault(error: BaseException) -> bool:
    """Return whether what a plugin raised is its own fault, and no wish to end this process."""
    return not isinstance(error, NO_FAULTS)


def is_strict() -> bool:
    """Return whether `MITHRIL_STRICT` asks for a plugin's own error."""
    return os.environ.get("MITHRIL_STRICT") == "1"


# ------------------------------------------------------------------ what is said of each


def _report_missing(
    point: EntryPoint, need: Requirement, kind: type[Judged], **known: Any
) -> Judged:
    found = f", found {need.installed}" if need.installed else ""
    fact, remedy = f"needs {need}{found}", need.install_command
    return kind(point=point, status=Status.missing, fact=fact, remedy=remedy, **known)


def _report_incompatible(point: EntryPoint, spec: BackendSpec) -> BackendEntry:
    theirs, ours = api_text(spec.api), api_text(BACKEND_API)
    older = CORE if spec.api > BACKEND_API else package_of(point)
    fact = f"speaks backend API {theirs}, this mithril {ours}"
    remedy = f"pip install -U {older}"
    return BackendEntry(
        point=point, status=Status.incompatible, fact=fact, remedy=remedy, spec=spec
    )


def describe_fault(error: BaseException) -> str:
    """Return what a plugin raised, in one line."""
    one_line = "; ".join(line.strip() for line in str(error).splitlines())
    return shorten(f"{type(error).__name__}: {one_line}", NOTE_LENGTH, placeholder=" …")


def _report_duplicate(
    point: EntryPoint, claims: Sequence[EntryPoint], kind: type[Judged]
) -> Judged:
    others = listing(package_of(claim) for claim in claims if claim is not point)
    fact = f"name also claimed by {others}"
    remedy = f"{_variable(point)}={package_of(point)} selects this one"
    return kind(point=point, status=Status.duplicate, fact=fact, remedy=remedy)


def _report_blocked(point: EntryPoint, allowed: Sequence[str], kind: type[Judged]) -> Judged:
    fact = f"MITHRIL_PLUGINS allows {listing(allowed)}"
    remedy = f"add {point.name} to MITHRIL_PLUGINS"
    return kind(point=point, status=Status.blocked, fact=fact, remedy=remedy)


def api_text(api: tuple[int, int]) -> str:
    """Return an API version as users see it, such as `1.0`."""
    return f"{api[0]}.{api[1]}"


def package_of(point: EntryPoint) -> str:
    """Return the distribution that offers an entry point."""
    return point.dist.name if point.dist else ""


def say_origin(point: EntryPoint) -> str:
    """Return the distribution that offers an entry point, with its version, for messages."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "this process"


def _is_core(need: Requirement) -> bool:
    return _normal(need.name) == CORE


def _variable(point: EntryPoint) -> str:
    middle = _KINDS[point.group].upper()
    return f"MITHRIL_{middle}_" + re.sub(r"\W", "_", point.name).upper()


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _comma_list(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))
