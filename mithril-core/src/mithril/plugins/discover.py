"""Which backends are installed, and whether each can be used: nothing is opened, no fault spreads.

Entry points of the group `mithril.backends` are loaded one at a time, each behind its own guard, so
a fault in one plugin is a row of the list and never a failure of another. Three variables steer it:

* `MITHRIL_PLUGINS=numpy,jax` allows only these backends (empty: none);
* `MITHRIL_BACKEND_JAX=some-package` settles which package gives `jax` when several claim it;
* `MITHRIL_STRICT=1` raises a plugin's own error instead of calling it broken.

The core's own backends keep their names unless the second variable says otherwise; among others no
one is preferred in silence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from textwrap import shorten

import pluggy

from mithril.errors import BackendError, listing
from mithril.plugins import hookspecs
from mithril.plugins.requirements import Requirement
from mithril.plugins.spec import BACKEND_API, BackendSpec, check_specs

GROUP = "mithril.backends"
CORE = "mithril-core"
NOTE_LENGTH = 200


class Status(StrEnum):
    """What a user is told about a backend.

    `ready` to open; `missing` a package it needs; `incompatible` with this backend API; `broken` in
    itself; a `duplicate` of a name that is taken; `blocked` by `MITHRIL_PLUGINS`.
    """

    ready = "ready"
    missing = "missing"
    incompatible = "incompatible"
    broken = "broken"
    duplicate = "duplicate"
    blocked = "blocked"


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """One entry point and the judgement on it.

    `fact` says what is wrong and `remedy` what to do; both are empty for a ready backend. `spec` is
    known if the plugin could be loaded; `error` is what a broken one raised.
    """

    point: EntryPoint
    status: Status
    fact: str = ""
    remedy: str = ""
    spec: BackendSpec | None = None
    error: Exception | None = None

    @property
    def name(self) -> str:
        """The backend's name."""
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
    def framework(self) -> Requirement | None:
        """The first package it requires, if the plugin could be loaded."""
        if self.spec is None or not self.spec.requires:
            return None
        return Requirement.parse(self.spec.requires[0])


def discover() -> tuple[BackendEntry, ...]:
    """Return every installed backend, judged, sorted by name and package."""
    points = entry_points(group=GROUP)
    entries = [entry for name in sorted(points.names) for entry in _judge_name(points, name)]
    return tuple(sorted(entries, key=lambda entry: (entry.name, entry.package)))


def find(name: str) -> BackendEntry | None:
    """Return the backend of a name, judged, or None; no other plugin is loaded.

    Of several packages that claim the name, the one in use is returned, else the first of them.
    """
    entries = _judge_name(entry_points(group=GROUP), name)
    in_use = [entry for entry in entries if entry.status is not Status.duplicate]
    return next(iter([*in_use, *entries]), None)


def names() -> tuple[str, ...]:
    """Return the names of all installed backends; nothing is loaded."""
    return tuple(sorted(entry_points(group=GROUP).names))


def load_spec(point: EntryPoint) -> BackendSpec:
    """Return the spec a plugin gives for its entry point.

    Raises:
        BackendError: it gives none, or a faulty one.
        Exception: whatever the plugin raises.
    """
    manager = register(point)
    specs = [spec for offered in manager.hook.mithril_backends() for spec in check_specs(offered)]
    for spec in specs:
        if spec.name == point.name:
            return spec
    raise BackendError(
        f"entry point '{point.name}' offers {listing(spec.name for spec in specs)}; implement "
        f"mithril_backends so that it returns a BackendSpec named '{point.name}'"
    )


def register(point: EntryPoint) -> pluggy.PluginManager:
    """Return a manager of the hooks that the module of an entry point implements, checked.

    Raises:
        Exception: whatever the plugin raises, or pluggy of its hooks.
    """
    # A manager for each entry point: what one plugin registers cannot disturb the next.
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(point.load(), name=point.name)
    manager.check_pending()  # pluggy accepts a misspelt hook until it is asked
    return manager


def is_allowed(name: str) -> bool:
    """Return whether `MITHRIL_PLUGINS` allows the entry points of a name."""
    allowed = os.environ.get("MITHRIL_PLUGINS")
    return allowed is None or name in _comma_list(allowed)


def _judge_name(points: Iterable[EntryPoint], name: str) -> list[BackendEntry]:
    """Judge the entry points that claim a name: at most one of them is in use."""
    claims = sorted((point for point in points if point.name == name), key=package_of)
    if not is_allowed(name):
        allowed = _comma_list(os.environ["MITHRIL_PLUGINS"])
        return [_report_blocked(point, allowed) for point in claims]
    chosen = _choose(name, claims)
    return [
        _judge(point) if point is chosen else _report_duplicate(point, claims) for point in claims
    ]


def _choose(name: str, claims: Sequence[EntryPoint]) -> EntryPoint | None:
    if len(claims) == 1:
        return claims[0]
    wanted = os.environ.get(_variable(name), CORE)
    return next((point for point in claims if _normal(package_of(point)) == _normal(wanted)), None)


def _judge(point: EntryPoint) -> BackendEntry:
    try:
        spec = load_spec(point)
    except Exception as error:
        if os.environ.get("MITHRIL_STRICT") == "1":
            raise
        return _report_broken(point, error)
    if spec.api[0] != BACKEND_API[0] or spec.api > BACKEND_API:
        return _incompatible(point, spec)
    unmet = [need for need in map(Requirement.parse, spec.requires) if not need.is_met]
    return (
        _missing(point, spec, unmet[0]) if unmet else BackendEntry(point, Status.ready, spec=spec)
    )


def _missing(point: EntryPoint, spec: BackendSpec, need: Requirement) -> BackendEntry:
    found = f", found {need.installed}" if need.installed else ""
    fact = f"needs {need}{found}"
    return BackendEntry(point, Status.missing, fact, need.install_command, spec)


def _incompatible(point: EntryPoint, spec: BackendSpec) -> BackendEntry:
    theirs, ours = api_text(spec.api), api_text(BACKEND_API)
    older = CORE if spec.api > BACKEND_API else package_of(point)
    fact = f"speaks backend API {theirs}, this mithril {ours}"
    return BackendEntry(point, Status.incompatible, fact, f"pip install -U {older}", spec)


def _report_broken(point: EntryPoint, error: Exception) -> BackendEntry:
    remedy = f"mithril backends info {point.name}"
    return BackendEntry(point, Status.broken, describe_fault(error), remedy, error=error)


def describe_fault(error: Exception) -> str:
    """Return what a plugin raised, in one line."""
    one_line = "; ".join(line.strip() for line in str(error).splitlines())
    return shorten(f"{type(error).__name__}: {one_line}", NOTE_LENGTH, placeholder=" …")


def _report_duplicate(point: EntryPoint, claims: Sequence[EntryPoint]) -> BackendEntry:
    variable = _variable(point.name)
    others = listing(package_of(claim) for claim in claims if claim is not point)
    fact, remedy = (
        f"name also claimed by {others}",
        f"{variable}={package_of(point)} selects this one",
    )
    return BackendEntry(point, Status.duplicate, fact, remedy)


def _report_blocked(point: EntryPoint, allowed: Sequence[str]) -> BackendEntry:
    fact = f"MITHRIL_PLUGINS allows {listing(allowed)}"
    return BackendEntry(point, Status.blocked, fact, f"add {point.name} to MITHRIL_PLUGINS")


def api_text(api: tuple[int, int]) -> str:
    """Return an API version as users see it, such as `1.0`."""
    return f"{api[0]}.{api[1]}"


def package_of(point: EntryPoint) -> str:
    """Return the distribution that offers an entry point."""
    return point.dist.name if point.dist else ""


def _variable(name: str) -> str:
    return "MITHRIL_BACKEND_" + re.sub(r"\W", "_", name).upper()


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _comma_list(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))
