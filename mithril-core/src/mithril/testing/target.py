"""The backend under test: opened by name, once for each mesh that a check asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mithril as ml
from mithril.engine import Engine
from mithril.mesh import Mesh

DEFAULT_MESH = {"a": 2, "b": 2}
UNEVEN_MESHES = ({"a": 3}, {"a": 2, "b": 3})
"""More meshes of the level `full`: most sizes of the cases cannot be divided by three."""


class Target:
    """A backend by its name, and the meshes that it is tried on.

    Args:
        name: as `mithril backends list` shows it.
        mesh: axes of the mesh for checks of several devices, any names; by default two axes of two.
        options: of the backend, as `open_backend` takes them.
    """

    def __init__(
        self,
        name: str,
        mesh: Mapping[str, int] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.options: dict[str, Any] = dict(options or {})
        self.mesh = Mesh(DEFAULT_MESH if mesh is None else mesh)
        self.uneven = UNEVEN_MESHES if mesh is None else ()
        self._opened: dict[Mesh, ml.Backend] = {}

    def open(self, mesh: Mesh | None = None) -> ml.Backend:
        """Return the backend on a mesh, by default on one device."""
        mesh = Mesh() if mesh is None else mesh
        if mesh not in self._opened:
            self._opened[mesh] = ml.open_backend(self.name, mesh, **self.options)
        return self._opened[mesh]

    def open_all(self) -> ml.Backend:
        """Return the backend on the mesh of several devices."""
        return self.open(self.mesh)

    def open_as(self, **precision: Any) -> ml.Backend:
        """Return the backend on the mesh of several devices with dtypes of its own."""
        return ml.open_backend(self.name, self.mesh, **self.options, **precision)

    @property
    def engine(self) -> Engine:
        """The engine on one device."""
        return self.open().engine


def open_oracle(mesh: Mesh | None = None, **precision: Any) -> ml.Backend:
    """Return what is right: the NumPy backend, by default on one device."""
    return ml.open_backend("numpy", Mesh() if mesh is None else mesh, **precision)
