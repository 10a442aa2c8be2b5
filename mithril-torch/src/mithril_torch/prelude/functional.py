"""Collectives as functions, which `torch.compile` can look into: nothing is done in place."""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as functional

from mithril_torch.prelude.collectives import cut, is_added, join, ordered, plain, restore, splits
from mithril_torch.prelude.groups import Group


def all_reduce_now(group: Group, reduction: str, *operands: torch.Tensor) -> object:
    """Return the reductions of the operands over a group, exchanged in one buffer."""
    if len(operands) == 1:
        return reduced(group, reduction, operands[0])
    flat = torch.cat([x.reshape(-1) for x in operands])
    parts = reduced(group, reduction, flat).split([x.numel() for x in operands])
    return tuple(part.view(x.shape) for part, x in zip(parts, operands, strict=True))


def reduced(group: Group, reduction: str, x: torch.Tensor) -> torch.Tensor:
    """Return the reduction of x over a group."""
    if x.numel() == 0:
        return x
    if is_added(reduction, x):
        return waited(functional.all_reduce(x.contiguous(), "sum", group.name))
    keys = ordered(x.contiguous(), reduction)
    found = waited(functional.all_reduce(keys, reduction, group.name))
    return restore(torch.empty_like(keys, dtype=x.dtype), found)


def all_gather_now(group: Group, x: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return the parts of a group joined along a dimension."""
    if x.numel() == 0:
        return join(group, x.new_empty((group.size, *x.shape)), dimension)
    data = plain(x.contiguous())
    found = waited(functional.all_gather_single(data, 0, group.name))
    return join(group, found.view(x.dtype).view(group.size, *x.shape), dimension)


def reduce_scatter_now(
    group: Group, reduction: str, x: torch.Tensor, dimension: int
) -> torch.Tensor:
    """Return this process's part, along a dimension, of the reduction of x over a group."""
    pieces = cut(group, x, dimension)
    place = group.index if group.places is None else group.places[group.index]
    if x.numel() == 0:
        return pieces[0]
    if not is_added(reduction, pieces):
        return reduced(group, reduction, pieces)[place]
    data = pieces.view(-1)
    found = waited(functional.reduce_scatter_single(data, "sum", 0, group.name))
    return found.view(pieces.shape[1:])


def all_to_all_now(group: Group, x: torch.Tensor, split: int, concat: int) -> torch.Tensor:
    """Return the pieces that come to this process, joined along `concat`."""
    pieces = cut(group, x, split)
    if x.numel() == 0:
        return join(group, pieces, concat)
    data = plain(pieces)
    found = waited(functional.all_to_all_single(data, None, None, group.name))
    return join(group, found.view(x.dtype).view(pieces.shape), concat)


def permute_now(group: Group, pairs: list[tuple[int, int]], x: torch.Tensor) -> torch.Tensor:
    """Return what another process sent on; who gets none keeps its own."""
    if x.numel() == 0:
        return x
    data = plain(x.contiguous())
    sent, received = splits(group, pairs, data.numel())
    copies = data.repeat(sum(map(bool, sent)))
    moved = waited(functional.all_to_all_single(copies, received, sent, group.name))
    return moved.view(x.dtype).view(x.shape) if any(received) else x


def waited(x: torch.Tensor) -> torch.Tensor:
    """Return x once its data is there."""
    found: torch.Tensor = functional.wait_tensor(x)
    return found
