"""Transfers of values between sub-meshes, without waiting.

What goes where is computed once for each transfer; a step then only slices, copies and assembles.
JAX's copies between devices are asynchronous, as its programs are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from mithril.spi import BackendError, Box, Shape, Transfer

from mithril_jax.devices import Devices, jax_mesh_of, pad_shape, spec_of

Move = Callable[[jax.Array], jax.Array]


def make_transfer(transfer: Transfer, devices: Devices) -> Move:
    """Return the function that brings an array to other devices.

    Args:
        transfer: what goes where.
        devices: those of the whole mesh.

    Raises:
        BackendError: a piece would go to another process.
    """
    source, target = transfer.source, transfer.target
    if _is_reordered(transfer):  # JAX does that, among processes, too
        mesh = jax_mesh_of(target.mesh, devices.flat)
        return partial(jax.device_put, device=NamedSharding(mesh, spec_of(target)))
    for device in {d for piece in transfer.chunks for d in (piece.sender, piece.receiver)}:
        if devices.flat[device].process_index != jax.process_index():
            raise _other_process(transfer, device)
    if transfer.goal is None and source.mesh.size == target.mesh.size == 1:
        return partial(jax.device_put, device=devices.flat[target.mesh.flat[0]])
    there = [devices.flat[device] for device in target.mesh.flat]
    mesh = jax_mesh_of(target.mesh, there)
    return _Transfer(
        _copies(transfer, devices),
        [_Assembly(device, i, transfer) for i, device in enumerate(there)],
        pad_shape(transfer.arriving.shape, target),
        NamedSharding(mesh, spec_of(target)),
    )


def _is_reordered(transfer: Transfer) -> bool:
    """Return whether all devices get what others of them had at the same coordinates."""
    source, target = transfer.source, transfer.target
    is_whole = source.mesh.axes == target.mesh.axes and not source.mesh.devices
    is_same = transfer.type == transfer.arriving and source.dims == target.dims
    return is_whole and is_same and not transfer.offset and not target.mesh.devices


@dataclass(frozen=True)
class _Copy:
    """A piece on its way.

    Args:
        sender: the device that has it.
        held: what it is of what the sender holds; None for all.
        receiver: where it goes.
        number: of the receiver among those of the transfer.
        place: where it lies there.
    """

    sender: Any
    held: Box | None
    receiver: Any
    number: int
    place: Box


def _copies(transfer: Transfer, devices: Devices) -> list[_Copy]:
    shape = transfer.source.local_shape(transfer.type.shape)
    numbers = {device: i for i, device in enumerate(transfer.target.mesh.flat)}
    return [
        _Copy(
            devices.flat[piece.sender],
            None if _fills(piece.held, shape) else piece.held,
            devices.flat[piece.receiver],
            numbers[piece.receiver],
            piece.place,
        )
        for piece in transfer.chunks
    ]


@dataclass(frozen=True)
class _Assembly:
    """What a device holds in the end: the one copy that is all of it, or zeros and copies.

    Args:
        device: the receiver.
        number: its own among those of the transfer.
        transfer: what goes where.
    """

    device: Any
    number: int
    transfer: Transfer

    def assemble(self, pieces: Sequence[tuple[Box, jax.Array]]) -> jax.Array:
        """Return the copies as one array."""
        arriving = self.transfer.arriving
        shape = self.transfer.target.local_shape(arriving.shape)
        if len(pieces) == 1 and _fills(pieces[0][0], shape):
            return pieces[0][1]
        whole: jax.Array = jax.device_put(np.zeros(shape, arriving.dtype.numpy), self.device)
        for place, piece in pieces:
            whole = whole.at[place].set(piece)
        return whole


@dataclass(frozen=True)
class _Transfer:
    """A transfer that several devices take part in, or that fills a part of what arrives."""

    copies: Sequence[_Copy]
    assemblies: Sequence[_Assembly]
    shape: Shape
    sharding: NamedSharding

    def __call__(self, array: jax.Array) -> jax.Array:
        held = {shard.device: shard.data for shard in array.addressable_shards}
        cuts = [held[c.sender] if c.held is None else held[c.sender][c.held] for c in self.copies]
        sent = jax.device_put(cuts, [copy.receiver for copy in self.copies])
        pieces: list[list[tuple[Box, jax.Array]]] = [[] for _ in self.assemblies]
        for copy, piece in zip(self.copies, sent, strict=True):
            pieces[copy.number].append((copy.place, piece))
        parts = [a.assemble(mine) for a, mine in zip(self.assemblies, pieces, strict=True)]
        if len(parts) == 1:
            return parts[0]
        moved: jax.Array = jax.make_array_from_single_device_arrays(
            self.shape, self.sharding, parts
        )
        return moved


def _fills(box: Box, shape: Shape) -> bool:
    return tuple(cut.stop - cut.start for cut in box) == shape


def _other_process(transfer: Transfer, device: int) -> BackendError:
    return BackendError(
        f"'{transfer.cause.value}' goes to or from device {device}, which belongs to another "
        f"process; stages of one model run in one process on JAX; use TorchBackend or MLXBackend "
        f"for several"
    )
