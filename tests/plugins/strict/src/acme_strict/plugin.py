"""Describes the backend; the library is imported when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.spi import BackendSpec, hookimpl

if TYPE_CHECKING:
    from mithril.spi import Engine, Mesh

GAPS = {
    "eager functions/matrices on a mesh": "cholesky of padding raises instead of giving NaN",
    "values/singular matrices": "the library raises instead of giving NaN",
    "precision/bfloat16": "the standard has no 16-bit floats",
    "precision/float16": "the standard has no 16-bit floats",
}
"""What the library, or kernels that ask nothing but the standard of it, cannot do."""


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
            known_gaps=GAPS,
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from acme_strict.engine import StrictEngine

    return StrictEngine(mesh)
