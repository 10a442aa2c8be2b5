"""Carry out a transfer where one process holds the parts of all devices."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from mithril.plan.timetable import Chunk, Transfer

Arrival = tuple[Chunk, Any]
"""A chunk and its values."""


def move(parts: Sequence[Any], transfer: Transfer, xp: ModuleType) -> list[Any]:
    """Return what the receiving devices hold, in the order of their mesh.

    Args:
        parts: what the sending devices hold, in the order of theirs.
        transfer: what goes where.
        xp: the array namespace.
    """
    held = dict(zip(transfer.source.mesh.flat, parts, strict=True))
    coming: dict[int, list[Arrival]] = {device: [] for device in transfer.target.mesh.flat}
    for chunk in transfer.chunks:
        coming[chunk.receiver].append((chunk, take(held[chunk.sender], chunk)))
    shape = transfer.target.local_shape(transfer.arriving.shape)
    return [put_together(arrived, shape, parts[0].dtype, xp) for arrived in coming.values()]


def take(held: Any, chunk: Chunk) -> Any:
    """Return a chunk of what its sender holds; all of it is that array itself."""
    lengths = tuple(cut.stop - cut.start for cut in chunk.held)
    return held if held.shape == lengths else held[chunk.held]


def put_together(
    arrived: Sequence[Arrival], shape: tuple[int, ...], dtype: Any, xp: ModuleType
) -> Any:
    """Return what a device holds once its pieces are there, zeros where there are none.

    Args:
        arrived: the pieces, and their values.
        shape: of what it holds.
        dtype: the namespace's dtype.
        xp: the array namespace.
    """
    if len(arrived) == 1 and arrived[0][1].shape == shape:
        return arrived[0][1]
    whole = xp.zeros(shape, dtype=dtype)
    for chunk, values in arrived:
        whole[chunk.place] = values
    return whole
