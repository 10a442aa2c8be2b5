"""Engines whose methods are looked at: what `MITHRIL_CHECK=1` makes of the engine of a backend.

`put` must give every device the values that it was handed, `shard` must return what a device holds
in an array that cannot be written to, and a transfer must bring the values that it was given and
leave them as they were. All of it is read back to the host, which takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Self, TypeVar, cast

import numpy as np

from mithril.engine.base import Engine
from mithril.engine.checks import check_handle, check_part
from mithril.engine.protocol import Handle, Produce
from mithril.engine.shards import trim_padding
from mithril.errors import BackendError, kind_of
from mithril.mesh import Box, Mesh, Sharding, edges
from mithril.plan.timetable import Transfer
from mithril.types import TensorType

AnyEngine = TypeVar("AnyEngine", bound=Engine)


def look_at_engine(engine: AnyEngine) -> AnyEngine:
    """Have the methods of an engine looked at from now on, and return it.

    Its class becomes one that derives from what it was, so that it is still the engine that a
    plugin and its interop know.
    """
    if not isinstance(engine, _Checked):
        object.__setattr__(engine, "__class__", _derive(type(engine)))
    return engine


@cache
def _derive(own: type[Engine]) -> type[Engine]:
    return cast("type[Engine]", type(own.__name__, (_Checked, own), {"__slots__": ()}))


class _Checked(Engine):
    """An engine whose methods are looked at."""

    __slots__ = ()

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
        """Make an array and read it back."""
        given: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

        def note(box: Box) -> np.ndarray:
            host = produce(box)
            given[edges(box)] = np.array(host, dtype=type.dtype.numpy)
            return host

        shards = super().put(type, sharding, note)  # type: ignore[safe-super]
        check_handle(self, "put", shards, type, sharding)
        for device in self.local_devices:
            box = sharding.box(device, type.shape)
            part = check_part(self.name, self.shard(shards, sharding, device), type, sharding)
            found, wanted = trim_padding(part, box), given.get(edges(box))
            if wanted is not None and found.tobytes() != wanted.tobytes():
                raise BackendError(
                    f"put of backend '{self.name}' gives device {device} other values of {type} "
                    f"than produce returned for its box; hand each device the values of its box"
                )
        return shards

    def shard(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds, if nobody can write to it."""
        part = super().shard(shards, sharding, device)  # type: ignore[safe-super]
        if not isinstance(part, np.ndarray):
            raise BackendError(
                f"shard of backend '{self.name}' returns {kind_of(part)}; return a NumPy array"
            )
        if part.flags.writeable:
            raise BackendError(
                f"shard of backend '{self.name}' returns an array that can be written to, which "
                f"may be memory of device {device}; set its flags.writeable to False"
            )
        return part

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of a part, looked at, too."""
        return look_at_engine(super().part(mesh))

    def lower_transfer(self, transfer: Transfer) -> Callable[[Handle], Handle]:
        """Return a transfer whose values are compared before and after."""
        return self._compare(transfer, super().lower_transfer(transfer))

    def move(self, shards: Handle, transfer: Transfer) -> Handle:
        """Bring a value to other devices and compare it."""
        carry_out = super().move
        return self._compare(transfer, lambda shards: carry_out(shards, transfer))(shards)

    def _compare(
        self, transfer: Transfer, carry_out: Callable[[Handle], Handle]
    ) -> Callable[[Handle], Handle]:
        def run(shards: Handle) -> Handle:
            before = self._read(shards, transfer.source)
            made = carry_out(shards)
            type, target = transfer.arriving, transfer.target
            check_handle(self, "transfer", made, type, target)
            if not _are_equal(before, self._read(shards, transfer.source)):
                raise BackendError(
                    f"a transfer of backend '{self.name}' changes the value that it takes, "
                    f"{type}; copy it"
                )
            arrived = self._read(made, target)
            for chunk in transfer.chunks:
                if chunk.sender not in before or chunk.receiver not in arrived:
                    continue
                found, sent = arrived[chunk.receiver], before[chunk.sender]
                if found.dtype != type.dtype.numpy or not _is_equal(
                    found[chunk.place], sent[chunk.held]
                ):
                    raise BackendError(
                        f"a transfer of backend '{self.name}' brings device {chunk.receiver} other "
                        f"values of {type} than device {chunk.sender} holds; bring those"
                    )
            return made

        return run

    def _read(self, shards: Handle, sharding: Sharding) -> dict[int, np.ndarray]:
        """Return copies of what the devices of this process hold, by their flat index."""
        engine = self.on(sharding.mesh)
        flat = sharding.mesh.flat
        return {flat[d]: engine.shard(shards, sharding, d).copy() for d in engine.local_devices}


def _is_equal(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.tobytes() == b.tobytes())


def _are_equal(before: dict[int, np.ndarray], after: dict[int, np.ndarray]) -> bool:
    return all(_is_equal(before[device], after[device]) for device in before)
