"""Describes the backend; Dask is imported when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.spi import BackendSpec, hookimpl

if TYPE_CHECKING:
    from mithril.spi import Engine, Mesh

GAPS = {
    "values/empty": "Dask has no largest element of an array without elements along the rest",
    "eager functions/shape on a mesh": "Dask reshapes only what merges or splits evenly",
    "eager functions/matrices on a mesh": "cholesky of padding raises instead of giving NaN",
    "precision/bfloat16": "the array API has no 16-bit floats",
    "precision/float16": "the array API has no 16-bit floats",
}
"""What Dask, or the shared kernels on it, cannot do."""


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
            known_gaps=GAPS,
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from acme_dask.engine import DaskEngine

    return DaskEngine(mesh)
