"""Arrays that lie on parts of the mesh: stages of a pipeline, layers on devices.

Operations run where their operands are. Whole arrays join those of a part; arrays of several parts
meet on the whole mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from mithril.ir import Cause
from mithril.mesh import Mesh, Sharding, coarse, onto
from mithril.partition.pipeline import Part, Placement
from mithril.plan.timetable import Transfer
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.types import TensorType


def colocate(backend: ArrayBackend, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return arrays on the devices on which they can be computed with."""
    whole = backend.mesh.numbering
    found = {x.sharding.mesh.numbering: x.sharding.mesh for x in arrays}
    parts = {numbering: mesh for numbering, mesh in found.items() if numbering != whole}
    if not parts:
        return arrays
    mesh = coarse(next(iter(parts.values()))) if len(parts) == 1 else backend.mesh
    return [move_to(x, onto(x.sharding, mesh)) for x in arrays]


def on_whole_mesh(x: Array) -> Array:
    """Return a placed array that lies on a part of the mesh on all of it, others as they are."""
    if not x.is_placed or not x.sharding.mesh.devices:
        return x
    return move_to(x, onto(x.sharding, x.backend.mesh))


def move_to(x: Array, sharding: Sharding, *, is_placed: bool | None = None) -> Array:
    """Return an array as it lies elsewhere.

    Args:
        x: an array.
        sharding: on other devices.
        is_placed: whether somebody said so; by default it is placed as it was before.
    """
    if x.sharding.mesh.numbering == sharding.mesh.numbering:
        return x
    shards = x.backend.engine.move(x.shards, _transfer(x.type, x.sharding, sharding))
    placed = x.is_placed if is_placed is None else is_placed
    return Array(x.backend, x.type, sharding, shards, placed)


@lru_cache(maxsize=4096)
def _transfer(type: TensorType, held: Sharding, wanted: Sharding) -> Transfer:
    """Return what brings arrays of a kind elsewhere; its pieces are worked out once."""
    cause = Cause("array", held.describe(), wanted.describe(), "an operation")
    return Transfer(type, held, wanted, cause)


def placement_by(mesh: Mesh, kinds: Sequence[Kind], names: Sequence[str]) -> Placement | None:
    """Return the placement of a function that runs where its arguments lie; None if they are whole.

    Args:
        mesh: of the backend.
        kinds: what is said of the arguments.
        names: of the arguments.
    """
    placed = [(name, kind) for name, kind in zip(names, kinds, strict=True) if kind.is_placed]
    parts = {
        kind.sharding.mesh.devices: coarse(kind.sharding.mesh)
        for _, kind in placed
        if kind.sharding.mesh.devices
    }
    if not parts:
        return None
    number = {devices: i for i, devices in enumerate(parts)}
    known = tuple(Part(f"devices {', '.join(map(str, d))}", m) for d, m in parts.items())
    inputs = {
        name: number[kind.sharding.mesh.devices]
        for name, kind in placed
        if kind.sharding.mesh.devices
    }
    return Placement((*known, Part("mesh", mesh)), {}, len(known), inputs=inputs)
