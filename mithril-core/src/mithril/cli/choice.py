"""The backend that a command works with: the one that was named, or the only one that can do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mithril.errors import BackendError, listing

if TYPE_CHECKING:
    from mithril.plugins.spec import BackendSpec


def choose_spec(
    name: str, has: Callable[[BackendSpec], bool], *, need: str, lack: str, remedy: str
) -> BackendSpec:
    """Return the backend of a name, or without a name the only ready one that can do something.

    Args:
        name: as on the command line; may be empty.
        has: whether a backend can do it.
        need: what is needed, and of which command.
        lack: what is said of a backend that was named and cannot.
        remedy: what to do where none can.

    Raises:
        BackendError: the one that was named is not ready or cannot do it, or none or several can.
    """
    from mithril.plugins.discover import Status, discover
    from mithril.plugins.opening import ready_spec, require

    ready = [entry.spec for entry in discover() if entry.spec and entry.status is Status.ready]
    able = [spec for spec in ready if has(spec)]
    names = listing(spec.name for spec in able)
    if name:
        spec = ready_spec(require(name))
        if not has(spec):
            summary = f" ({spec.summary})" if spec.summary else ""
            raise BackendError(f"backend '{name}'{summary} {lack}; those that do: {names}")
        return spec
    if len(able) != 1:
        remedy = "choose one with --backend, before a script" if able else remedy
        raise BackendError(f"{need}; found {names}; {remedy}")
    return able[0]
