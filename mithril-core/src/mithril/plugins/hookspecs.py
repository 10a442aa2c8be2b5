"""The hooks a plugin may implement. Every implementation is checked against this page.

A hook with an unknown name or an unknown argument makes its plugin `broken`, never silently unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pluggy

from mithril.plugins.spec import BackendSpec

PROJECT = "mithril"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backends a module offers. It must not import a framework."""
    raise NotImplementedError("a hook specification is not called; implement it with @hookimpl")


@hookspec
def mithril_hardware() -> Sequence[str | Path]:
    """Return paths of hardware profiles: TOML files, each named as its profile.

    Since backend API 2.1. Modules of the entry-point groups `mithril.plugins` and
    `mithril.backends` may implement it.
    """
    raise NotImplementedError("a hook specification is not called; implement it with @hookimpl")
