"""The devices of a mesh, and what `device_mesh=` means for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithril.errors import MeshError
from mithril.mesh import Mesh
from mithril.mesh.axes import as_shape
from mithril.visualize.figures import PathLike, plot_table
from mithril.visualize.terminal import print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MeshLike = Mesh | int | Sequence[int]


def plot_mesh(device_mesh: MeshLike, *, path: PathLike | None = None) -> Figure:
    """Return a grid of the devices of a mesh, with the number of each.

    Args:
        device_mesh: a mesh, or the shape of one, which then has the default axis names.
        path: where to save the figure; the ending says in which format.

    Raises:
        MeshError: it is neither.
        OptionError: matplotlib is not installed, or the path cannot be written.
    """
    return plot_table(as_mesh(device_mesh).tabulate(), path)


def print_mesh(device_mesh: MeshLike) -> None:
    """Print a grid of the devices of a mesh, with the number of each.

    Args:
        device_mesh: a mesh, or the shape of one, which then has the default axis names.

    Raises:
        MeshError: it is neither.

    >>> print_mesh((2, 4))
    Mesh(data=2, model=4), 8 devices
    ┌────────────────┬───┬───┬───┬───┐
    │ data ↓ model → │ 0 │ 1 │ 2 │ 3 │
    ├────────────────┼───┼───┼───┼───┤
    │ 0              │ 0 │ 1 │ 2 │ 3 │
    │ 1              │ 4 │ 5 │ 6 │ 7 │
    └────────────────┴───┴───┴───┴───┘
    """
    print_table(as_mesh(device_mesh).tabulate())


def as_mesh(device_mesh: MeshLike) -> Mesh:
    """Return a mesh that is given as one, or as its shape.

    Raises:
        MeshError: it is neither.
    """
    if isinstance(device_mesh, Mesh):
        return device_mesh
    return Mesh.from_shape(as_shape(device_mesh, "device_mesh"))


def match_mesh(what: str, own: Mesh, device_mesh: MeshLike | None, *, is_named: bool) -> Mesh:
    """Return the mesh that something is drawn on, with the names of its axes.

    Args:
        what: what it is, for the message.
        own: the mesh it was made for.
        device_mesh: the mesh that the user says, if any.
        is_named: whether the names of its own mesh are known; else the user may give others.

    Raises:
        MeshError: it was made for another mesh.
    """
    if device_mesh is None:
        return own
    mesh = as_mesh(device_mesh)
    is_said = isinstance(device_mesh, Mesh) and is_named
    if mesh.shape != own.shape or (is_said and mesh.names != own.names):
        shown = repr(own) if is_named else f"a mesh of shape {own.shape}"
        raise MeshError(
            f"{what} is of {shown}, not of {device_mesh!r}; give the mesh it was made for, or "
            f"leave device_mesh out"
        )
    return mesh if not is_named else own
