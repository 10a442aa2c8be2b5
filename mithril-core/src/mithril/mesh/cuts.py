"""Cutting mesh axes into sub-axes: `tensor=4` is `tensor.0=2, tensor.1=2`, the same devices.

A spec that names sub-axes says how their axes are cut, if it comes from a sharding; one that a user
writes is read where only one cut has parts of these names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mithril.errors import MeshError
from mithril.mesh.axes import Axis
from mithril.mesh.mesh import Mesh
from mithril.mesh.spec import PartitionSpec

Cuts = Mapping[str, Sequence[int]]


def refine(mesh: Mesh, cuts: Cuts) -> Mesh:
    """Return the mesh with some axes cut into factors, major first.

    Args:
        mesh: a mesh without sub-axes.
        cuts: for an axis the sizes of its parts; their product is the size of the axis.

    >>> refine(Mesh(data=2, tensor=4), {"tensor": (2, 2)})
    Mesh(data=2, tensor.0=2, tensor.1=2)
    """
    axes: list[Axis] = []
    parts = {name: [name] for name in mesh.names}
    for axis in mesh.axes:
        sizes = [size for size in cuts.get(axis.name, ()) if size > 1]
        if len(sizes) < 2:
            axes.append(axis)
            continue
        assert math.prod(sizes) == axis.size, f"{sizes} are no factors of {axis}"
        finer = [Axis(f"{axis.name}.{i}", size, axis.name) for i, size in enumerate(sizes)]
        axes += finer
        parts[axis.name] = [part.name for part in finer]
    return Mesh.of_axes(axes, mesh.devices, [part for name in mesh.order for part in parts[name]])


def find_cuts(mesh: Mesh) -> dict[str, tuple[int, ...]]:
    """Return how axes are cut in a mesh, by the name of the axis.

    >>> find_cuts(refine(Mesh(data=2, tensor=4), {"tensor": (2, 2)}))
    {'tensor': (2, 2)}
    """
    found: dict[str, tuple[int, ...]] = {}
    for axis in mesh.axes:
        if axis.parent:
            found[axis.parent] = (*found.get(axis.parent, ()), axis.size)
    return found


def refine_for(mesh: Mesh, spec: PartitionSpec, what: str = "tensor") -> Mesh:
    """Return the mesh cut as a spec names its axes.

    Args:
        mesh: of a backend, or a refinement.
        spec: may name sub-axes.
        what: what the spec is for, for messages.

    Raises:
        MeshError: the mesh has no such axis, or it cannot be cut so.

    >>> refine_for(Mesh(tensor=4), PartitionSpec("tensor.1"))
    Mesh(tensor.0=2, tensor.1=2)
    """
    lacking = [a for d in range(len(spec)) for a in spec.axes(d) if a not in mesh.sizes]
    cuts: dict[str, tuple[int, ...]] = {}
    for name in lacking:
        origin, _, number = name.rpartition(".")
        if origin not in mesh.sizes or not number.isdecimal():
            raise MeshError(f"{spec!r} of {what} does not fit; {mesh.lacking(name)}")
        cuts[origin] = dict(spec.cuts).get(origin) or _only_cut(mesh, origin, lacking, spec, what)
        if math.prod(cuts[origin]) != mesh.sizes[origin] or int(number) >= len(cuts[origin]):
            raise MeshError(
                f"{spec!r} of {what} does not fit; it cuts mesh axis '{origin}' into "
                f"{' x '.join(map(str, cuts[origin]))}, and {mesh} has {mesh.sizes[origin]} "
                f"devices along it; use the spec of a sharding on this mesh"
            )
    return refine(mesh, cuts) if cuts else mesh


def _only_cut(
    mesh: Mesh, origin: str, names: Sequence[str], spec: PartitionSpec, what: str
) -> tuple[int, ...]:
    """Return the sizes of an axis's parts where their names leave one possibility.

    That is an axis of p^n devices whose n-th part is named, or any part where n is 2: each has p.
    """
    parts = [name.rpartition(".") for name in names]
    last = max(int(n) for o, _, n in parts if o == origin and n.isdecimal())
    count = max(2, last + 1)
    size = mesh.sizes[origin]
    prime = next(p for p in range(2, size + 1) if size % p == 0) if size > 1 else 2
    if prime**count != size:
        raise MeshError(
            f"{spec!r} of {what} names a part of mesh axis '{origin}' ({size}), which may be cut "
            f"in several ways; use the spec of a sharding, x.sharding.spec, or whole axes"
        )
    return (prime,) * count
