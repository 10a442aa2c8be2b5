"""The block of memory in which a program keeps its results at fixed places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def make_arena(
    needs: Sequence[tuple[Sequence[int], int]], rank: int, device: str | torch.device
) -> torch.Tensor:
    """Return the block of a rank, as large as the program needs that needs most.

    Args:
        needs: devices, all if none are named, and how many bytes they need.
        rank: of this process.
        device: where the block lies.
    """
    sizes = [size for devices, size in needs if not devices or rank in devices]
    return torch.empty(max(sizes, default=0), dtype=torch.uint8, device=device)


def cut(arena: torch.Tensor, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return the part of a block that a tensor takes, as that tensor."""
    size = math.prod(shape) * dtype.itemsize
    return arena[offset : offset + size].view(dtype).view(shape)


__all__ = ["cut", "make_arena"]
