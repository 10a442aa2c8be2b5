"""Rotary position embedding: cosines and sines of fixed positions are made once."""

from __future__ import annotations

import math
from typing import Any

import torch

from mithril_torch.program.runtime_library.tracing import is_traced

TABLES: dict[Any, Any] = {}


def rope(
    x: torch.Tensor,
    base: float | tuple[float, ...],
    offset: int,
    interleaved: bool,
    inverse: bool,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x [b, s, h, d] with the pairs of each head turned by their angles.

    `base` is that of the wavelengths, or how far each pair turns a position.
    """
    wide = x.float() if x.dtype.itemsize == 2 else x
    s, d = x.shape[1], x.shape[3]
    if positions is None:
        key = (s, d, base, offset, interleaved, wide.dtype, x.device)
        if key not in TABLES:
            at = torch.arange(s, dtype=torch.float64, device=x.device) + offset
            TABLES[key] = rotations(at, d, base, interleaved, wide.dtype)
        turn, tilt = TABLES[key]
    else:
        at = positions.to(torch.float64) + offset
        if at.dim() == 0:
            at = at + torch.arange(s, dtype=torch.float64, device=x.device)
        turn, tilt = rotations(at, d, base, interleaved, wide.dtype)
    halves = (slice(0, d, 2), slice(1, d, 2)) if interleaved else (slice(d // 2), slice(d // 2, d))
    first, second = ((..., half) for half in halves)
    sign = -1 if inverse else 1
    if is_traced():
        return turn_pairs(wide, turn, tilt * sign, interleaved).to(x.dtype)
    y: torch.Tensor = wide * turn
    y[first].addcmul_(wide[second], tilt, value=-sign)
    y[second].addcmul_(wide[first], tilt, value=sign)
    return y.to(x.dtype)


def turn_pairs(
    x: torch.Tensor, turn: torch.Tensor, tilt: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Return the same in ops that write nowhere, of which compilers make a kernel."""
    if interleaved:
        (x, y), (cosine, other) = x.unflatten(-1, (-1, 2)).unbind(-1), (turn[..., ::2],) * 2
    else:
        (x, y), (cosine, other) = x.chunk(2, -1), turn.chunk(2, -1)
    pair = (x * cosine - y * tilt, y * other + x * tilt)
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


def rotations(
    at: torch.Tensor,
    d: int,
    base: float | tuple[float, ...],
    interleaved: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines for all elements, [..., 1, d], and sines for all pairs, [..., 1, d / 2]."""
    if isinstance(base, tuple):
        speeds = torch.tensor(base, dtype=torch.float64, device=at.device)
    else:
        pairs = torch.arange(0, d, 2, dtype=torch.float64, device=at.device)
        speeds = torch.exp(pairs * (-math.log(base) / max(1, d)))
    angle = at[..., None, None] * speeds
    turn = angle.cos().to(dtype)
    turn = turn.repeat_interleave(2, -1) if interleaved else torch.cat((turn, turn), -1)
    return turn, angle.sin().to(dtype)


__all__ = ["rope"]
