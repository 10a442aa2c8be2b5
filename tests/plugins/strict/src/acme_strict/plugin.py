"""Describes the backend; the library is imported when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.spi import BackendSpec, hookimpl

if TYPE_CHECKING:
    from mithril.spi import Engine, Mesh


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backend."""
    return [
        BackendSpec(
            name="strict",
            open=_open,
            api=(2, 2),
            requires=("array-api-strict>=2.4",),
            summary="array-api-strict on simulated devices: the standard, and nothing else",
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from acme_strict.engine import StrictEngine

    return StrictEngine(mesh)
