"""Arrays between backends of the same devices whose mesh axes lie in different orders.

A device has other coordinates in the one than in the other, so an array is moved: each device gets
what the one at its coordinates had.
"""

from __future__ import annotations

from mithril.mesh import follow_sharding
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.runtime.submesh import move_to
from mithril.runtime.unplaced import HostArray, PendingArray


def follow_kind(backend: ArrayBackend, kind: Kind) -> Kind:
    """Return the kind that an array has on a backend of the same devices in another order.

    Args:
        backend: that one.
        kind: of an array of the other.
    """
    if kind.is_open or kind.sharding is None:
        return kind._replace(backend=backend)
    sharding = follow_sharding(kind.sharding, kind.backend.mesh, backend.mesh)
    return Kind(backend, kind.type, sharding, kind.is_placed)


def bring_over(backend: ArrayBackend, x: Array) -> Array:
    """Return an array as one of a backend of the same devices in another order.

    One that nobody has placed is moved in place, so that it is moved once.

    Args:
        backend: where it goes.
        x: an array of the other one.
    """
    kind = follow_kind(backend, x.kind)
    if isinstance(x, HostArray | PendingArray):  # without parts on devices
        x.kind = kind
        return x
    moved = move_to(x, kind.sharding)
    if kind.is_placed:
        return Array.of_kind(kind, moved.shards)
    x.shards, x.kind = moved.shards, kind
    return x


__all__ = ["bring_over", "follow_kind"]
