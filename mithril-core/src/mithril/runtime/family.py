"""Backends of the same devices whose mesh axes lie in different orders: what they have in common.

A device has other coordinates in the one than in the other. An array that goes from one to another
is moved: each device gets what the one at its coordinates had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mithril.engine import Observer
from mithril.ir.source import Source
from mithril.mesh import Mesh, follow_sharding
from mithril.runtime.array import Array, ArrayBackend, Kind
from mithril.runtime.submesh import move_to
from mithril.runtime.unplaced import HostArray, PendingArray


class OpenProfile(Protocol):
    """A profile whose block has not ended (`mithril.runtime.profiling`): it runs what is run."""

    @property
    def place(self) -> Source | None:
        """The user's line that opened it."""

    def run(self, bound: Any, given: Sequence[Any], observe: Observer | None) -> list[Any]:
        """Run a bound plan and measure it."""


class Family:
    """What backends of the same devices have in common.

    Attributes:
        backends: by their mesh; none as long as one order is in use.
        open_profile: the profile that measures what any of them runs; None where none does.
    """

    def __init__(self) -> None:
        self.backends: dict[Mesh, ArrayBackend] = {}
        self.open_profile: OpenProfile | None = None

    def has(self, backend: object) -> bool:
        """Return whether a backend is one of them."""
        return any(known is backend for known in self.backends.values())


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


__all__ = ["Family", "OpenProfile", "bring_over", "follow_kind"]
