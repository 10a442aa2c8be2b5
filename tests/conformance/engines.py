"""The installed backends, each opened once for a mesh, to be compared with NumPy's."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import mithril as ml
import pytest
from mithril.mesh import Mesh

LOCKSTEP = "torch in lockstep"
LARGEST_POOL = 4  # each worker is a process; larger meshes run in lockstep
PACKAGES = {
    "jax": "mithril_jax", "torch": "mithril_torch", LOCKSTEP: "mithril_torch", "mlx": "mithril_mlx",
}  # fmt: skip


def _backend(name: str, *marks: pytest.MarkDecorator) -> Any:
    package = PACKAGES[name]
    is_missing = importlib.util.find_spec(package) is None
    missing = pytest.mark.skipif(is_missing, reason=f"{package} is not installed")
    return pytest.param(name, marks=[missing, *marks])


BACKENDS = [_backend(name) for name in PACKAGES]
"""Every backend but numpy, which is what they are compared with."""
IN_ONE_PROCESS = [_backend(name) for name in PACKAGES if name != "torch"]
"""The same on meshes larger than a pool of workers may be."""


@cache
def opened(backend: str, **axes: int) -> ml.Backend:
    """Return a backend on a mesh, opened once."""
    mesh = Mesh(axes)
    if backend == "torch" and mesh.size > LARGEST_POOL:
        backend = LOCKSTEP
    return ml.open_backend(name_of(backend), mesh, **options_of(backend))


def opened_here(backend: str, **axes: int) -> ml.Backend:
    """Return a backend all of whose devices belong to this process, as kernels of users need."""
    return opened(LOCKSTEP if backend == "torch" else backend, **axes)


def name_of(backend: str) -> str:
    """Return the name by which a backend is opened."""
    return "torch" if backend == LOCKSTEP else backend


def options_of(backend: str) -> dict[str, str]:
    """Return the options that a backend is opened with."""
    return {"executor": "lockstep"} if backend == LOCKSTEP else {}


def exact(backend: str) -> AbstractContextManager[object]:
    """Return a context in which a backend has float64, and is held to its tolerance."""
    if backend != "jax":
        return nullcontext()
    import jax

    context: AbstractContextManager[object] = jax.enable_x64(True)
    return context
