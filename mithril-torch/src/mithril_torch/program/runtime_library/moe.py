"""MoE dispatch and combine, inside groups, where an id may name no row."""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.index import all_within, keep_rows, select_rows


def moe_dispatch(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return rows of x by id inside each group; zeros where an id names none."""
    groups, rows, _ = x.shape
    start = torch.arange(0, groups * rows, rows, device=x.device).unsqueeze(1)
    return select_or_clear(x, ids, start)


def moe_dispatch_by_expert(x: torch.Tensor, ids: torch.Tensor, experts: int) -> torch.Tensor:
    """Return the same rows, [experts, groups, capacity, features]."""
    groups, rows, _ = x.shape
    start = torch.arange(0, groups * rows, rows, device=x.device).view(1, groups, 1)
    return select_or_clear(x, ids.unflatten(1, (experts, -1)).transpose(0, 1), start)


def select_or_clear(x: torch.Tensor, ids: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Return rows by id, each counted from where its group starts; zeros where an id names none."""
    groups, rows, features = x.shape
    table = x.reshape(groups * rows, features)
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


__all__ = ["moe_combine", "moe_dispatch", "moe_dispatch_by_expert"]
