"""Products with a matrix for each block; a block whose id names none gives zeros.

How many blocks have the same matrix is only known when the program runs. Where it would have to
wait for that, or is compiled for all of them, each block gets a copy of its matrix.
"""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.tracing import is_traced


def is_eager(x: torch.Tensor) -> bool:
    """Whether the program may look at ids while it runs."""
    return x.device.type == "cpu" and not is_traced()


def grouped_matmul(x: torch.Tensor, ids: torch.Tensor, stack: torch.Tensor) -> torch.Tensor:
    """Return blocks of rows times the matrices [entries, in, out] that their ids name."""
    groups, count, rows, _ = x.shape
    entries, features, out = stack.shape
    blocks, ids = x.reshape(groups * count, rows, features), ids.reshape(-1)
    if not is_eager(x):
        known = torch.logical_and(ids >= 0, ids < entries)
        made = torch.bmm(blocks, stack[ids.clamp(0, max(entries - 1, 0))])
        return made.masked_fill(~known[:, None, None], 0).view(groups, count, rows, out)
    made = blocks.new_zeros((groups * count, rows, out))
    for entry in range(entries):
        which = torch.eq(ids, entry).nonzero().squeeze(1)
        if which.numel():
            chosen = blocks.index_select(0, which).flatten(0, 1)
            made.index_copy_(0, which, torch.mm(chosen, stack[entry]).view(len(which), rows, out))
    return made.view(groups, count, rows, out)


def grouped_outer(
    left: torch.Tensor, right: torch.Tensor, ids: torch.Tensor, entries: int
) -> torch.Tensor:
    """Return the sums of left.T @ right over the blocks of each entry."""
    rows, first, second, ids = left.shape[2], left.shape[3], right.shape[3], ids.reshape(-1)
    left, right = left.reshape(len(ids), rows, first), right.reshape(len(ids), rows, second)
    if not is_eager(left):
        return torch.stack(
            [_multiply_masked(left, right, ids == entry) for entry in range(entries)]
        )
    made = left.new_zeros((entries, first, second))
    for entry in range(entries):
        which = torch.eq(ids, entry).nonzero().squeeze(1)
        if which.numel():
            mine = left.index_select(0, which).flatten(0, 1)
            torch.mm(mine.t(), right.index_select(0, which).flatten(0, 1), out=made[entry])
    return made


def _multiply_masked(left: torch.Tensor, right: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """Return left.T @ right over some blocks; both are masked, as zero times infinity is none."""
    others = torch.logical_not(mine)[:, None, None]
    left, right = left.masked_fill(others, 0), right.masked_fill(others, 0)
    return torch.mm(left.flatten(0, 1).t(), right.flatten(0, 1))


__all__ = ["grouped_matmul", "grouped_outer"]
