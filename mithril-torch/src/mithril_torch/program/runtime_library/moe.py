"""MoE dispatch and combine, inside groups, where an id may name no row."""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.index import all_within, keep_rows, select_rows


def moe_dispatch(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return rows of x by id inside each group; zeros where an id names none."""
    groups, rows, features = x.shape
    table = x.reshape(groups * rows, features)
    start = torch.arange(0, groups * rows, rows, device=x.device).unsqueeze(1)
    if all_within(ids, rows):
        return select_rows(table, ids + start)
    good = ids.clamp(0, rows - 1)
    return keep_rows(select_rows(table, good + start), torch.eq(good, ids))


def moe_combine(x: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Return for each row of the result the sum of the rows of x that its ids name."""
    groups, _, features = x.shape
    found = moe_dispatch(x, ids).view(groups, -1, rows, features)
    if found.shape[1] == 1:
        return found.squeeze(1)
    if found.shape[1] == 2 and found.dtype not in (torch.float16, torch.bfloat16):
        return torch.add(found[:, 0], found[:, 1])
    return torch.sum(found, 1, dtype=found.dtype)


__all__ = ["moe_combine", "moe_dispatch"]
