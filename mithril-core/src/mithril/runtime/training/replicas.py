"""Batches of parts of a mesh axis that train by themselves: what each of them has of an input."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mithril.errors import MeshError, ShapeError, ShardingError
from mithril.mesh import Mesh
from mithril.runtime.array import Kind


def find_batches(inputs: Mapping[str, Kind], axis: str, mesh: Mesh) -> frozenset[str]:
    """Return the inputs that are cut over the axis whose parts train by themselves.

    Args:
        inputs: kinds by name.
        axis: whose parts train by themselves.
        mesh: of the backend.

    Raises:
        MeshError: the mesh lacks the axis.
        ShardingError: no input is split over it, or one not first along its first dimension.
    """
    if axis not in mesh.sizes:
        raise MeshError(
            f"diloco() trains over mesh axis '{axis}', which {mesh} does not have; give one "
            f"of its axes by axis="
        )
    found = set()
    for name, kind in inputs.items():
        axes = kind.sharding.split_axes if kind.sharding is not None else ()
        if axis in axes:
            if kind.sharding.dims[0][:1] != (axis,):
                raise ShardingError(
                    f"input '{name}' is split as {kind.sharding.spec!r}; parts of axis "
                    f"'{axis}' train by themselves on parts of the batch: name it first in "
                    f"the first dimension"
                )
            found.add(name)
    if not found and mesh.sizes[axis] > 1:
        raise ShardingError(
            f"diloco() finds no input that is split over axis '{axis}': all parts would train "
            f"on the same batch; give a TensorSpec with sharding=P('{axis}') in shapes="
        )
    return frozenset(found)


def cut_kinds(
    inputs: Mapping[str, Kind], batches: Collection[str], axis: str, mesh: Mesh
) -> dict[str, Kind]:
    """Return the kinds of what one part of an axis has of the inputs of all.

    Args:
        inputs: kinds by name.
        batches: which of them are cut.
        axis: whose parts train by themselves.
        mesh: of the backend.

    Raises:
        ShapeError: a batch is not divisible.
    """
    return {n: cut_kind(n, k, axis, mesh) if n in batches else k for n, k in inputs.items()}


def cut_kind(name: str, kind: Kind, axis: str, mesh: Mesh) -> Kind:
    """Return the kind of the part of a batch that one part of an axis has.

    Raises:
        ShapeError: the batch is not divisible.
    """
    count, shape = mesh.sizes[axis], kind.type.shape
    if not shape or shape[0] % count:
        raise ShapeError(
            f"input '{name}' is {kind.type} for {count} parts of axis '{axis}' that train by "
            f"themselves; give a batch that {count} divides"
        )
    type = kind.type.with_shape((shape[0] // count, *shape[1:]))
    lies = kind.sharding if kind.sharding is None else kind.sharding.leave_out(axis)
    return kind._replace(type=type, sharding=lies)


__all__ = ["cut_kind", "cut_kinds", "find_batches"]
