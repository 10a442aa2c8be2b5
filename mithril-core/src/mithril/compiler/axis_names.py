"""Names of mesh axes in options: those of the mesh, and the words that the guides have for them."""

from __future__ import annotations

from mithril.errors import OptionError, listing, nearest
from mithril.mesh import Mesh, coarse

ALIASES = {"data_parallel": ("data",), "model_parallel": ("model", "tensor")}
"""Other names of mesh axes, as the guides have them."""


def find_axis(name: str, mesh: Mesh, option: str) -> str:
    """Return the axis of a mesh that a name means.

    Args:
        name: of the axis, or another name of it.
        mesh: that of the backend.
        option: what names it, for messages.

    Raises:
        OptionError: the mesh has no such axis.

    >>> find_axis("model_parallel", Mesh(data=2, tensor=2), "collective_ops")
    'tensor'
    """
    known = coarse(mesh).names
    found = [axis for axis in (name, *ALIASES.get(name, ())) if axis in known]
    if not found:
        raise OptionError(
            f"{option} names axis '{name}', which the mesh lacks{nearest(name, known)}; axes: "
            f"{listing(known)}"
        )
    return found[0]


__all__ = ["find_axis"]
