"""The NumPy backend as a plugin: simulated devices in one process, registered as anyone's is.

Like every plugin module it is light; the engine is imported when the backend is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.spi import BackendSpec, hookimpl

if TYPE_CHECKING:
    from mithril.spi import Engine, Mesh


@hookimpl
def mithril_backends() -> Sequence[BackendSpec]:
    """Describe the NumPy backend."""
    return [
        BackendSpec(
            name="numpy",
            open=_open,
            api=(2, 5),
            requires=("numpy>=2.0",),
            summary="NumPy on simulated devices, in one process",
        )
    ]


def _open(mesh: Mesh, options: object) -> Engine:
    from mithril.engine.numpy_engine import NumpyEngine

    return NumpyEngine(mesh, options)
