"""Describes the backend; Dask is imported when it is opened."""

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
            name="dask",
            open=_open,
            api=(2, 2),
            requires=("dask>=2025.1", "array-api-compat>=1.9"),
            summary="Lazy arrays of Dask, computed at the end of each program",
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from acme_dask.engine import DaskEngine

    return DaskEngine(mesh)
