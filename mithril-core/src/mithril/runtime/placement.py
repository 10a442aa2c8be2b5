"""Read `device_mesh=`, `tensor_split=` and `sharding=` of an array as a Sharding.

`device_mesh` says which part of the backend's mesh is used: a size of 1 means replicated there, a
shorter tuple means the leading dimensions. Entry i of `tensor_split` belongs to mesh dimension i
and names the tensor dimension it splits, or None; by default it is (0, 1, …), clipped to the rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from mithril.errors import MeshError, OptionError, ShardingError
from mithril.mesh import (
    Mesh,
    PartitionSpec,
    Sharding,
    check_spec_mesh,
    coarse,
    coarsen,
    follow_sharding,
)
from mithril.mesh.axes import as_shape
from mithril.mesh.refinement import part
from mithril.types import TensorType

Split = int | Sequence[int | None] | None


def read_placement(
    mesh: Mesh,
    type: TensorType,
    device_mesh: int | Sequence[int] | None = None,
    tensor_split: Split = None,
    sharding: PartitionSpec | Sharding | None = None,
    what: str = "tensor",
) -> Sharding:
    """Return the sharding that the arguments mean on a mesh.

    Args:
        mesh: the backend's mesh.
        type: the tensor's type.
        device_mesh: the part of the mesh that is used; all of it when only `tensor_split` is given.
        tensor_split: for each mesh dimension the tensor dimension it splits.
        sharding: the modern form; excludes the other two.
        what: the tensor's name, for messages.

    Raises:
        OptionError: `sharding` is given together with one of the others.
        MeshError: `device_mesh` does not fit the mesh.
        ShardingError: a dimension does not exist, or its size does not divide.
    """
    if sharding is not None:
        if device_mesh is not None or tensor_split is not None:
            raise OptionError(
                "sharding= is given together with device_mesh= or tensor_split=; give one form"
            )
        found = _read_sharding(mesh, sharding, type.rank, what)
    elif device_mesh is None and tensor_split is None:
        found = Sharding.replicated(mesh, type.rank)
    else:
        found = _read_split(mesh, device_mesh, tensor_split, type.rank, what)
    found.check(type.shape, what)
    return coarsen(found, type.shape)


def _read_sharding(
    mesh: Mesh, sharding: PartitionSpec | Sharding, rank: int, what: str
) -> Sharding:
    if isinstance(sharding, Sharding):
        whole = coarse(sharding.mesh)
        if whole.axes == mesh.axes and not whole.devices:  # perhaps in another order
            sharding = follow_sharding(sharding, whole, mesh)
        elif not _is_part(sharding.mesh, mesh):
            raise MeshError(
                f"sharding of {what} is on {sharding.mesh!r}, the backend on {mesh!r}; use one mesh"
            )
        return Sharding.of(sharding.mesh, sharding.spec, rank, what)
    if not isinstance(sharding, PartitionSpec):
        raise ShardingError(f"sharding={sharding!r} is not a partition spec; write P('data', None)")
    check_spec_mesh(sharding, mesh, what)
    return Sharding.of(mesh, sharding, rank, what)


def _is_part(part: Mesh, mesh: Mesh) -> bool:
    """Return whether a mesh is a part of another: the same axes, some with fewer devices."""
    names = tuple(axis.name for axis in coarse(part).axes)
    return bool(part.devices) and names == mesh.names and max(part.devices) < mesh.size


def _read_split(
    mesh: Mesh, device_mesh: object, tensor_split: Split, rank: int, what: str
) -> Sharding:
    shape = mesh.shape if device_mesh is None else as_shape(device_mesh, "device_mesh")
    finer, entries = part(mesh, shape, f" of {what}")
    split = _split_entries(tensor_split, len(entries), rank, what)
    dims: list[tuple[str, ...]] = [()] * rank
    for axes, dimension in zip(entries, split, strict=True):
        if dimension is not None:
            dims[dimension] += axes
    return Sharding(finer, tuple(dims))


def _split_entries(tensor_split: Split, count: int, rank: int, what: str) -> tuple[int | None, ...]:
    if tensor_split is None:
        return tuple(i if i < rank else None for i in range(count))
    given = (tensor_split,) if isinstance(tensor_split, int) else tensor_split
    if not isinstance(given, Sequence) or not all(map(_is_dimension, given)):
        raise ShardingError(
            f"tensor_split={tensor_split!r} of {what} is not made of dimensions; give an integer "
            f"or None per mesh dimension, such as tensor_split=(0, None)"
        )
    given = tuple(given)
    if len(given) > count:
        raise ShardingError(
            f"tensor_split={given} of {what} has {len(given)} entries for {count} mesh dimensions; "
            f"give at most one per mesh dimension"
        )
    for dimension in given:
        if dimension is not None and not -rank <= dimension < rank:
            raise ShardingError(
                f"tensor_split={given} names dimension {dimension} of {what}, which has rank "
                f"{rank}; name a dimension it has"
            )
    padded = (*given, *[None] * (count - len(given)))
    return tuple(None if d is None else d % rank for d in padded)


def _is_dimension(entry: object) -> bool:
    return entry is None or (isinstance(entry, int) and not isinstance(entry, bool))
