"""Devices of a plan: which of them do the same, and what each holds of a tensor."""

from __future__ import annotations

import math

from mithril.mesh import Sharding
from mithril.mesh.sharding import edges
from mithril.plan import Plan
from mithril.plan.timetable import Transfer
from mithril.types import TensorType


def group_devices(plan: Plan) -> list[tuple[int, ...]]:
    """Return the devices of a plan in groups that run and receive the same."""
    shardings = [s for one in plan.timetable.transfers for s in (one.source, one.target)]
    shardings += [port.sharding for port in (*plan.inputs, *plan.outputs)]
    # Most are on one and the same mesh, whose devices are listed once.
    meshes = {id(sharding.mesh): sharding.mesh for sharding in shardings}
    parts = dict.fromkeys(stage.devices for stage in plan.stages)
    parts |= dict.fromkeys(mesh.flat for mesh in meshes.values())
    roles: dict[int, list[int]] = {device: [] for device in range(plan.mesh.size)}
    for number, devices in enumerate(parts):
        for device in devices:
            roles[device].append(number)
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, role in roles.items():
        groups.setdefault(tuple(role), []).append(device)
    return [tuple(devices) for devices in groups.values()]


def local_bytes(type: TensorType, sharding: Sharding) -> int:
    """Return the bytes that a device holds of a tensor, padding included."""
    return math.prod(sharding.local_shape(type.shape)) * type.dtype.itemsize


def stays(transfer: Transfer, device: int) -> bool:
    """Return whether what a device needs is a part of what it has: it is not copied then."""
    places = [sharding.mesh.flat.index(device) for sharding in (transfer.source, transfer.target)]
    held = edges(transfer.source.box(places[0], transfer.type.shape))
    needed = list(edges(transfer.target.box(places[1], transfer.arriving.shape)))
    if transfer.offset and needed:
        needed[0] = (needed[0][0] + transfer.offset, needed[0][1] + transfer.offset)
    return all(a <= c and d <= b for (a, b), (c, d) in zip(held, needed, strict=True))


__all__ = ["group_devices", "local_bytes", "stays"]
