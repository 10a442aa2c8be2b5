"""Collectives as functions, which `torch.compile` can look into: nothing is done in place."""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as functional

from mithril_torch.program.runtime_library.collectives import (
    flatten_elements,
    from_ordered_integers,
    is_native_sum,
    join_parts,
    split_parts,
    split_sizes,
    to_ordered_integers,
)
from mithril_torch.program.runtime_library.groups import Group


def all_reduce_now(group: Group, reduction: str, *operands: torch.Tensor) -> object:
    """Return the reductions of the operands over a group, exchanged in one buffer."""
    if len(operands) == 1:
        return reduce_tensor(group, reduction, operands[0])
    flat = torch.cat([x.reshape(-1) for x in operands])
    parts = reduce_tensor(group, reduction, flat).split([x.numel() for x in operands])
    return tuple(part.view(x.shape) for part, x in zip(parts, operands, strict=True))


def reduce_tensor(group: Group, reduction: str, x: torch.Tensor) -> torch.Tensor:
    """Return the reduction of x over a group."""
    if x.numel() == 0:
        return x
    if is_native_sum(reduction, x):
        return wait_for_tensor(functional.all_reduce(x.contiguous(), "sum", group.name))
    keys = to_ordered_integers(x.contiguous(), reduction)
    found = wait_for_tensor(functional.all_reduce(keys, reduction, group.name))
    return from_ordered_integers(torch.empty_like(keys, dtype=x.dtype), found)


def all_gather_now(group: Group, x: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return the parts of a group joined along a dimension."""
    if x.numel() == 0:
        return join_parts(group, x.new_empty((group.size, *x.shape)), dimension)
    data = flatten_elements(x.contiguous())
    found = wait_for_tensor(functional.all_gather_single(data, 0, group.name))
    return join_parts(group, found.view(x.dtype).view(group.size, *x.shape), dimension)


def reduce_scatter_now(
    group: Group, reduction: str, x: torch.Tensor, dimension: int
) -> torch.Tensor:
    """Return this process's part, along a dimension, of the reduction of x over a group."""
    pieces = split_parts(group, x, dimension)
    place = group.index if group.places is None else group.places[group.index]
    if x.numel() == 0:
        return pieces[0]
    if not is_native_sum(reduction, pieces):
        return reduce_tensor(group, reduction, pieces)[place]
    data = pieces.view(-1)
    found = wait_for_tensor(functional.reduce_scatter_single(data, "sum", 0, group.name))
    return found.view(pieces.shape[1:])


def all_to_all_now(group: Group, x: torch.Tensor, split: int, concat: int) -> torch.Tensor:
    """Return the pieces that come to this process, joined along `concat`."""
    pieces = split_parts(group, x, split)
    if x.numel() == 0:
        return join_parts(group, pieces, concat)
    data = flatten_elements(pieces)
    found = wait_for_tensor(functional.all_to_all_single(data, None, None, group.name))
    return join_parts(group, found.view(x.dtype).view(pieces.shape), concat)


def permute_now(group: Group, pairs: list[tuple[int, int]], x: torch.Tensor) -> torch.Tensor:
    """Return what another process sent on; who gets none has zeros, and takes part."""
    if x.numel() == 0:
        return x
    data = flatten_elements(x.contiguous())
    sent, received = split_sizes(group, pairs, data.numel())
    copies = data.repeat(sum(map(bool, sent)))
    moved = wait_for_tensor(functional.all_to_all_single(copies, received, sent, group.name))
    return moved.view(x.dtype).view(x.shape) if any(received) else torch.zeros_like(x)


def wait_for_tensor(x: torch.Tensor) -> torch.Tensor:
    """Return x once its data is there."""
    found: torch.Tensor = functional.wait_tensor(x)
    return found
