"""What Mithril reads before the backend is opened: nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.spi import BackendSpec, hookimpl

if TYPE_CHECKING:
    from mithril.spi import Engine, Mesh

GAPS = {
    "eager functions/matrices on a mesh": "cholesky of padding raises instead of giving NaN",
    "values/singular matrices": "the library raises instead of giving NaN",
    "precision/bfloat16": "the array API has no 16-bit floats",
    "precision/float16": "the array API has no 16-bit floats",
}
"""What PyTorch, or the shared kernels on it, cannot do."""


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the backend."""
    return [
        BackendSpec(
            name="eager",
            open=_open,
            api=(2, 2),
            requires=("torch>=2.4", "array-api-compat>=1.9"),
            summary="PyTorch, on simulated devices in one process",
            known_gaps=GAPS,
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from acme_eager.engine import EagerEngine

    return EagerEngine(mesh)
