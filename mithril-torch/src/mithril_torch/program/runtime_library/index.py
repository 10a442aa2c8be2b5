"""Functions that choose by integers, where an id may name no row.

On the CPU it is cheap to see whether all ids are good. Elsewhere the program would have to wait for
the device, so that bad ids are replaced and what they give is put right afterwards.
"""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.numbers import all_bits, as_bits
from mithril_torch.program.runtime_library.tracing import is_traced


def all_within(ids: torch.Tensor, count: int) -> bool:
    """Whether all ids are known to lie in 0…count-1, which is found out where it costs nothing."""
    if ids.device.type != "cpu" or is_traced():
        return False
    if not ids.numel():
        return True
    low, high = torch.aminmax(ids)
    return low.item() >= 0 and high.item() < count


def select_rows(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return a copy of the rows that good ids name."""
    if ids.dim() == 1:
        return torch.index_select(table, 0, ids)
    rows = torch.index_select(table, 0, ids.reshape(-1))
    return rows.view(ids.shape + table.shape[1:])


def fill_rows(rows: torch.Tensor, chosen: torch.Tensor, value: float) -> torch.Tensor:
    """Write a number into some rows."""
    mask = chosen.view(chosen.shape + (1,) * (rows.dim() - chosen.dim()))
    return rows.masked_fill_(mask, value)


def keep_rows(rows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Write zeros into the rows that are not chosen."""
    if rows.device.type != "cpu" or is_traced():
        return fill_rows(rows, chosen.logical_not(), 0)
    bits = as_bits(rows)
    mask = all_bits(chosen, bits.dtype)
    bits.bitwise_and_(mask.view(mask.shape + (1,) * (bits.dim() - mask.dim())))
    return rows


def missing_value(table: torch.Tensor) -> float:
    """Return what stands where an id names no row."""
    return torch.nan if table.is_floating_point() else 0


def take(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return rows of a table; an id that names none gives NaN."""
    if all_within(ids, table.shape[0]):
        return select_rows(table, ids)
    good = ids.clamp(0, table.shape[0] - 1)
    return fill_rows(select_rows(table, good), torch.ne(good, ids), missing_value(table))


def take_part(
    table: torch.Tensor, ids: torch.Tensor, offset: torch.Tensor, count: int
) -> torch.Tensor:
    """Return rows of a part of a table of `count` rows (0: not known).

    An id that names a row elsewhere gives zeros, one that names none at all NaN.
    """
    local = ids.to(torch.int64) - offset
    good = local.clamp(0, table.shape[0] - 1)
    rows = keep_rows(select_rows(table, good), torch.eq(good, local))
    if not count or all_within(ids, count):
        return rows
    return fill_rows(rows, torch.ne(ids.clamp(0, count - 1), ids), missing_value(table))


def scatter_add(ids: torch.Tensor, updates: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` rows of sums of the updates whose ids name them; others are dropped."""
    if all_within(ids, count):
        return add_rows(ids, updates, count)
    return add_rows(redirect_invalid(ids, count), updates, count + 1)[:count]


def add_rows(ids: torch.Tensor, updates: torch.Tensor, count: int) -> torch.Tensor:
    """Return sums of the updates that go to the same row, by good ids.

    Elsewhere than on the CPU `index_add_` adds in any order; the gradient of an embedding sorts.
    """
    if updates.device.type != "cpu" and updates.is_floating_point():
        back = torch.ops.aten.embedding_dense_backward
        total: torch.Tensor = back(updates, ids, count, -1, False)
        return total
    return updates.new_zeros((count, updates.shape[1])).index_add_(0, ids, updates)


def redirect_invalid(ids: torch.Tensor, count: int) -> torch.Tensor:
    """Return ids with those that name no row all naming a row of their own, behind the others."""
    return ids.masked_fill((ids < 0).logical_or_(ids >= count), count)


def take_along(x: torch.Tensor, at: torch.Tensor, axis: int) -> torch.Tensor:
    """Return elements by position along a dimension; NaN where there is none."""
    if all_within(at, x.shape[axis]):
        return torch.gather(x, axis, at)
    good = at.clamp(0, x.shape[axis] - 1)
    return fill_rows(torch.gather(x, axis, good), torch.ne(good, at), missing_value(x))


def scatter_along(at: torch.Tensor, updates: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Return sums of the updates that go to one place along a dimension; others are dropped."""
    good = all_within(at, size)
    shape = list(updates.shape)
    shape[axis] = size if good else size + 1
    places = at if good else redirect_invalid(at, size)
    total = updates.new_zeros(shape).scatter_add_(axis, places, updates)
    return total if good else total.narrow(axis, 0, size)


def top_k(x: torch.Tensor, k: int, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k largest elements, the first of equal ones first and NaN last, and where."""
    if x.is_floating_point():
        values, order = torch.sort(torch.neg(x), dim=axis, stable=True)
        values = torch.neg(values.narrow(axis, 0, k))
    else:
        small = x.dtype in (torch.uint16, torch.uint32)
        wide = x.to(torch.int64) if small else x
        values, order = torch.sort(wide, dim=axis, stable=True, descending=True)
        values = values.narrow(axis, 0, k).to(x.dtype)
    return values, order.narrow(axis, 0, k).to(torch.int32)


__all__ = ["scatter_add", "scatter_along", "take", "take_along", "take_part", "top_k"]
