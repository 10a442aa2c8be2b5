"""Backends by name: `from mithril.backends import NumpyBackend, JaxBackend, …`.

The names of published backends always import, whatever is installed; opening one whose package is
missing says which to install. Every other installed backend has such a name, too: `NpuBackend`
opens `npu`, `TpuSimBackend` opens `tpu-sim`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mithril.keywords import checked_keywords
from mithril.plugins.naming import SUFFIX, find_backend, list_openers

if TYPE_CHECKING:
    from mithril.mesh import Mesh
    from mithril.runtime import Backend

__all__ = ["JaxBackend", "MLXBackend", "NumpyBackend", "TorchBackend"]


@checked_keywords()
def NumpyBackend(  # noqa: N802 - reads as a class
    device_mesh: Mesh | int | Sequence[int] | None = None,
    *,
    mesh_axis_names: Sequence[str] | None = None,
    **options: object,
) -> Backend:
    """Open the NumPy backend: simulated devices in this process; see `open_backend`.

    >>> NumpyBackend(device_mesh=(2,)).ones(4, device_mesh=(2,)).addressable_shards[0].data.shape
    (2,)
    """
    return _open("numpy", device_mesh, mesh_axis_names, options)


@checked_keywords()
def JaxBackend(  # noqa: N802
    device_mesh: Mesh | int | Sequence[int] | None = None,
    *,
    mesh_axis_names: Sequence[str] | None = None,
    **options: object,
) -> Backend:
    """Open the JAX backend, from the package mithril-jax; see `open_backend`."""
    return _open("jax", device_mesh, mesh_axis_names, options)


@checked_keywords()
def TorchBackend(  # noqa: N802
    device_mesh: Mesh | int | Sequence[int] | None = None,
    *,
    mesh_axis_names: Sequence[str] | None = None,
    **options: object,
) -> Backend:
    """Open the PyTorch backend, from the package mithril-torch; see `open_backend`."""
    return _open("torch", device_mesh, mesh_axis_names, options)


@checked_keywords()
def MLXBackend(  # noqa: N802
    device_mesh: Mesh | int | Sequence[int] | None = None,
    *,
    mesh_axis_names: Sequence[str] | None = None,
    **options: object,
) -> Backend:
    """Open the MLX backend, from the package mithril-mlx; see `open_backend`."""
    return _open("mlx", device_mesh, mesh_axis_names, options)


def __getattr__(name: str) -> Callable[..., Backend]:
    if not name.endswith(SUFFIX) or name.startswith("_"):
        raise AttributeError(f"mithril.backends has no '{name}'; dir() lists what there is")
    backend = find_backend(name)

    def opener(
        device_mesh: Mesh | int | Sequence[int] | None = None,
        *,
        mesh_axis_names: Sequence[str] | None = None,
        **options: object,
    ) -> Backend:
        return _open(backend, device_mesh, mesh_axis_names, options)

    opener.__name__ = opener.__qualname__ = name
    opener.__doc__ = f"Open the backend '{backend}'; see `open_backend`."
    return opener


def __dir__() -> list[str]:
    return sorted({*globals(), *list_openers()})


def _open(
    name: str,
    device_mesh: Mesh | int | Sequence[int] | None,
    names: Sequence[str] | None,
    options: dict[str, Any],
) -> Backend:
    from mithril.runtime import open_backend

    return open_backend(name, device_mesh, mesh_axis_names=names, **options)
