"""Engines whose methods are looked at: what `MITHRIL_CHECK=1` makes of the engine of a backend.

`put` must give every device the values that it was handed, `shard` must return what a device holds
in an array that cannot be written to, and a transfer must bring the values that it was given and
leave them as they were. All of it is read back to the host, which takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np

from mithril.engine.base import Engine
from mithril.engine.checks import check_handle, check_part
from mithril.engine.protocol import Handle, Produce
from mithril.engine.shards import trim_padding
from mithril.errors import FaultyBackendError, kind_of
from mithril.mesh import Box, Mesh, Sharding, edges
from mithril.plan.timetable import Transfer
from mithril.types import TensorType

AnyEngine = TypeVar("AnyEngine", bound=Engine)
Carry = Callable[[Handle], Handle]
_DERIVED: set[type[Engine]] = set()


def look_at_engine(engine: AnyEngine) -> AnyEngine:
    """Have the methods of an engine looked at from now on, and return it.

    Its class becomes one that derives from what it was, so that it is still the engine that a
    plugin and its interop know.
    """
    if type(engine) not in _DERIVED:
        object.__setattr__(engine, "__class__", _derive(type(engine)))
    return engine


@cache
def _derive(own: type[Engine]) -> type[Engine]:
    """Return a class of engines, of the same layout in memory, with its methods looked at."""

    class Checked(own):  # type: ignore[valid-type, misc]
        __slots__ = ()

        def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
            return _put(self, super().put, type, sharding, produce)

        def shard(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
            return _check_host(self, super().shard(shards, sharding, device), device)

        def part(self, mesh: Mesh) -> Engine:
            part: Engine = super().part(mesh)
            return look_at_engine(part)

        def lower_transfer(self, transfer: Transfer) -> Carry:
            return _compare(self, transfer, super().lower_transfer(transfer))

        def move(self, shards: Handle, transfer: Transfer) -> Handle:
            carry_out = super().move
            return _compare(self, transfer, lambda held: carry_out(held, transfer))(shards)

    if own.part is Engine.part:  # it knows no parts, which is asked
        del Checked.part
    Checked.__name__, Checked.__qualname__ = own.__name__, own.__qualname__
    _DERIVED.add(Checked)
    return Checked


def _put(
    engine: Engine,
    put: Callable[[TensorType, Sharding, Produce], Handle],
    type: TensorType,
    sharding: Sharding,
    produce: Produce,
) -> Handle:
    """Make an array and read it back."""
    given: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def note(box: Box) -> np.ndarray:
        host = produce(box)
        given[edges(box)] = np.array(host, dtype=type.dtype.numpy)
        return host

    shards = put(type, sharding, note)
    check_handle(engine, "put", shards, type, sharding)
    for device in engine.local_devices:
        box = sharding.box(device, type.shape)
        part = check_part(engine.name, engine.shard(shards, sharding, device), type, sharding)
        found, wanted = trim_padding(part, box), given.get(edges(box))
        if wanted is not None and found.tobytes() != wanted.tobytes():
            raise FaultyBackendError(
                f"put of backend '{engine.name}' gives device {device} other values of {type} "
                f"than produce returned for its box; hand each device the values of its box"
            )
    return shards


def _check_host(engine: Engine, part: Any, device: int) -> np.ndarray:
    """Return what `shard` returned if nobody can write to it."""
    if not isinstance(part, np.ndarray):
        raise FaultyBackendError(
            f"shard of backend '{engine.name}' returns {kind_of(part)}; return a NumPy array"
            f"{', np.asarray(x) of a scalar' if isinstance(part, np.generic) else ''}"
        )
    if part.flags.writeable:
        raise FaultyBackendError(
            f"shard of backend '{engine.name}' returns an array that can be written to, which "
            f"may be memory of device {device}; set its flags.writeable to False"
        )
    return part


def _compare(engine: Engine, transfer: Transfer, carry_out: Carry) -> Carry:
    """Return a transfer whose values are compared before and after."""
    type, target = transfer.arriving, transfer.target

    def run(shards: Handle) -> Handle:
        before = _read(engine, shards, transfer.source)
        made = carry_out(shards)
        check_handle(engine, "transfer", made, type, target)
        if not _are_equal(before, _read(engine, shards, transfer.source)):
            raise FaultyBackendError(
                f"a transfer of backend '{engine.name}' changes the value that it takes, {type}; "
                f"copy it"
            )
        arrived = _read(engine, made, target)
        for chunk in transfer.chunks:
            if chunk.sender not in before or chunk.receiver not in arrived:
                continue
            found, sent = arrived[chunk.receiver], before[chunk.sender]
            if not _is_equal(found[chunk.place], sent[chunk.held]):
                raise FaultyBackendError(
                    f"a transfer of backend '{engine.name}' brings device {chunk.receiver} other "
                    f"values of {type} than device {chunk.sender} holds; bring those"
                )
        return made

    return run


def _read(engine: Engine, shards: Handle, sharding: Sharding) -> dict[int, np.ndarray]:
    """Return copies of what the devices of this process hold, by their flat index."""
    part, flat = engine.on(sharding.mesh), sharding.mesh.flat
    return {flat[d]: part.shard(shards, sharding, d).copy() for d in part.local_devices}


def _is_equal(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.tobytes() == b.tobytes())


def _are_equal(before: dict[int, np.ndarray], after: dict[int, np.ndarray]) -> bool:
    return all(_is_equal(before[device], after[device]) for device in before)
