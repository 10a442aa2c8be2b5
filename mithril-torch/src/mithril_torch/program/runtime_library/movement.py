"""Functions that move elements, or keep some of them by which device this is."""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.tracing import is_traced


def spread(
    x: torch.Tensor, shape: list[int], before: tuple[int, ...], between: tuple[int, ...]
) -> torch.Tensor:
    """Return zeros with x laid into them, zeros before and between its elements."""
    whole = x.new_zeros(shape)
    if x.numel():
        starts = zip(before, between, x.shape, strict=True)
        whole[tuple(slice(b, b + (n - 1) * (gap + 1) + 1, gap + 1) for b, gap, n in starts)] = x
    return whole


def take_shard(x: torch.Tensor, index: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    """Return part number `index` of `count` equal parts along a dimension."""
    size = x.shape[axis] // count
    if index.device.type == "cpu" and not is_traced():
        return x.narrow(axis, int(index) * size, size)
    parts: torch.Tensor = x.unflatten(axis, (count, size))
    return torch.index_select(parts, axis, index.reshape(1)).squeeze(axis)


def keep_first(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return x where index is 0, zeros elsewhere."""
    if index.device.type == "cpu" and not is_traced():
        return x if int(index) == 0 else torch.zeros_like(x)
    return torch.where(index == 0, x, torch.zeros_like(x))


__all__ = ["keep_first", "spread", "take_shard"]
