"""Carry out a transfer where one process holds the parts of all devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

from mithril.mesh import Box
from mithril.plan.timetable import Chunk, Transfer

Arrival = tuple[Chunk, Any]
"""A chunk and its values."""
PlacedPart = tuple[Box, Any]
"""A place, and what stands there."""


def move(parts: Sequence[Any], transfer: Transfer, xp: ModuleType) -> list[Any]:
    """Return what the receiving devices hold, in the order of their mesh.

    No array is written into: libraries whose arrays cannot change have it as well.

    Args:
        parts: what the sending devices hold, in the order of theirs.
        transfer: what goes where.
        xp: the array namespace; `concat` and `zeros` are used.
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
        xp: the array namespace; `concat` and `zeros` are used.
    """
    if len(arrived) == 1 and arrived[0][1].shape == shape:
        return arrived[0][1]
    return _join([(chunk.place, values) for chunk, values in arrived], shape, dtype, xp, 0)


def _join(
    pieces: Sequence[PlacedPart], shape: tuple[int, ...], dtype: Any, xp: ModuleType, axis: int
) -> Any:
    """Return an array of pieces that fill all axes before one.

    The axis is cut where a piece begins or ends, so that each section has whole pieces alone.
    """
    if not pieces or 0 in shape:
        return xp.zeros(shape, dtype=dtype)
    if axis == len(shape):
        return pieces[-1][1]
    edges = {0, shape[axis]}
    edges.update(edge for place, _ in pieces for edge in (place[axis].start, place[axis].stop))
    before, behind = shape[:axis], shape[axis + 1 :]
    sections = []
    for start, stop in pairwise(sorted(edges)):
        inside = [
            (place, _take(values, axis, start - place[axis].start, stop - place[axis].start))
            for place, values in pieces
            if place[axis].start <= start and stop <= place[axis].stop
        ]
        sections.append(_join(inside, (*before, stop - start, *behind), dtype, xp, axis + 1))
    return sections[0] if len(sections) == 1 else xp.concat(sections, axis=axis)


def _take(values: Any, axis: int, start: int, stop: int) -> Any:
    if (start, stop) == (0, values.shape[axis]):
        return values
    behind = len(values.shape) - axis - 1
    return values[(slice(None),) * axis + (slice(start, stop),) + (slice(None),) * behind]
