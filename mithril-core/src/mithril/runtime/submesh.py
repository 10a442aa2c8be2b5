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
    parts = {x.sharding.mesh.devices: x.sharding.mesh for x in arrays if x.sharding.mesh.devices}
    if not parts:
        return arrays
    mesh = coarse(next(iter(parts.values()))) if len(parts) == 1 else backend.mesh
    return [move_to(x, onto(x.sharding, mesh)) for x in arrays]


def on_whole_mesh(x: Array) -> Array:
    """Return an array that lies on a part of the mesh on all of it, others as they are."""
    if not x.is_materialised or not x.sharding.mesh.devices:
        return x
    return move_to(x, onto(x.sharding, x.backend.mesh))


def move_to(x: Array, sharding: Sharding) -> Array:
    """Return an array as it lies elsewhere.

    Args:
        x: an array.
        sharding: on other devices.
    """
    if x.sharding.mesh.devices == sharding.mesh.devices:
        return x
    shards = x.backend.engine.move(x.shards, _transfer(x.type, x.sharding, sharding))
    return Array(x.backend, x.type, sharding, shards)


@lru_cache(maxsize=4096)
def _transfer(type: TensorType, held: Sharding, wanted: Sharding) -> Transfer:
    """Return what brings arrays of a kind elsewhere; its pieces are worked out once."""
    cause = Cause("array", held.describe(), wanted.describe(), "an operation")
    return Transfer(type, held, wanted, cause)


def placement_by(mesh: Mesh, kinds: Sequence[Kind], names: Sequence[str]) -> Placement | None:
    """Return the placement of a function that runs where its arguments lie; None if they are whole.

    Args:
        mesh: of the backend.
        kinds: of the arguments.
        names: of the arguments.
    """
    parts = {
        kind.sharding.mesh.devices: coarse(kind.sharding.mesh)
        for kind in kinds
        if kind.sharding.mesh.devices
    }
    if not parts:
        return None
    number = {devices: i for i, devices in enumerate(parts)}
    known = tuple(Part(f"devices {', '.join(map(str, d))}", m) for d, m in parts.items())
    inputs = {
        name: number[kind.sharding.mesh.devices]
        for name, kind in zip(names, kinds, strict=True)
        if kind.sharding.mesh.devices
    }
    return Placement((*known, Part("mesh", mesh)), {}, len(known), inputs=inputs)
