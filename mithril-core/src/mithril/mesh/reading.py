"""Shardings as people give them: a PartitionSpec, or the Sharding that an array has.

A Sharding is taken as its spec, with its cuts and the mesh that it is of; that this is the mesh of
the backend is checked where the backend is known.
"""

from __future__ import annotations

from mithril.errors import MeshError
from mithril.mesh.mesh import Mesh
from mithril.mesh.refinement import coarse
from mithril.mesh.sharding import Sharding
from mithril.mesh.spec import PartitionSpec


def read_spec(given: object) -> PartitionSpec | None:
    """Return the spec that something is or, if it is a Sharding, has.

    Args:
        given: what a user passed.

    Returns:
        None if it is neither.

    >>> read_spec(Sharding.of(Mesh(x=2), PartitionSpec("x"), 2))
    P('x', None)
    """
    if isinstance(given, PartitionSpec):
        return given
    if not isinstance(given, Sharding):
        return None
    spec = given.spec
    spec.mesh = coarse(given.mesh)
    return spec


def is_whole(own: Mesh, mesh: Mesh) -> bool:
    """Return whether the mesh of a sharding is all of a backend's, and no part of it.

    Args:
        own: of the sharding, perhaps with axes that are cut.
        mesh: of the backend, perhaps with its axes in another order.

    >>> is_whole(Mesh(x=2), Mesh(x=2)), is_whole(Mesh(x=2), Mesh(x=4))
    (True, False)
    """
    found, whole = coarse(own), coarse(mesh)
    return found == whole or (found.axes == whole.axes and not found.devices)


def check_spec_mesh(spec: PartitionSpec, mesh: Mesh, what: str) -> None:
    """Raise if a spec was read from a sharding of another mesh.

    Args:
        spec: of a tensor.
        mesh: of the backend, perhaps with its axes in another order.
        what: what the spec is for, for messages.

    Raises:
        MeshError: it was.
    """
    own = spec.mesh
    if isinstance(own, Mesh) and not is_whole(own, mesh):
        raise MeshError(f"sharding of {what} is on {own!r}, the backend on {mesh!r}; use one mesh")
