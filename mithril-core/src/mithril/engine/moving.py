"""Carry out a transfer where one process holds the parts of all devices."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from mithril.ir.timetable import Piece, Transfer


def moved(parts: Sequence[Any], transfer: Transfer, xp: ModuleType) -> list[Any]:
    """Return what the receiving devices hold, in the order of their mesh.

    Args:
        parts: what the sending devices hold, in the order of theirs.
        transfer: what goes where.
        xp: the array namespace.
    """
    shape = transfer.target.local_shape(transfer.type.shape)
    senders = dict(zip(transfer.source.mesh.flat, parts, strict=True))
    coming: dict[int, list[Piece]] = {device: [] for device in transfer.target.mesh.flat}
    for piece in transfer.pieces:
        coming[piece.receiver].append(piece)
    return [_put_together(senders, pieces, shape, parts[0], xp) for pieces in coming.values()]


def _put_together(
    senders: dict[int, Any],
    pieces: Sequence[Piece],
    shape: tuple[int, ...],
    like: Any,
    xp: ModuleType,
) -> Any:
    if len(pieces) == 1:
        (piece,) = pieces
        held = senders[piece.sender]
        fills = tuple(cut.stop - cut.start for cut in piece.place) == shape
        if fills and held.shape == shape:
            return held
        if fills:
            return held[piece.held]
    whole = xp.zeros(shape, dtype=like.dtype)
    for piece in pieces:
        whole[piece.place] = senders[piece.sender][piece.held]
    return whole
