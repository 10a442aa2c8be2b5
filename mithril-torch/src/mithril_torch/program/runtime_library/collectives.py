"""Collectives, each in two forms, called with the group, operands, and the op's attributes by name.

One is started early and waited for late: it returns something to `wait()` for. The other, `…_now`,
is a function that `torch.compile` can look into: what it is given is not changed.

Sums of whole values are taken in place, in a buffer that belongs to the program. Where the library
below does not know a type, data moves as bytes, is compared as integers in the same order, and is
added as wider integers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from mithril_torch.program.runtime_library.exchange_layout import (
    NATIVE_DTYPES,
    flatten_elements,
    flatten_operands,
    is_cut_in_rows,
    join_operands,
    part_shape,
    split_operands,
    split_parts,
    split_row,
    view_parts,
)
from mithril_torch.program.runtime_library.groups import Group
from mithril_torch.program.runtime_library.host_collectives import (
    all_reduce_on_host,
    all_to_all_on_host,
    permute_on_host,
    reduce_scatter_on_host,
)
from mithril_torch.program.runtime_library.pending import Pending, settle_begun
from mithril_torch.program.runtime_library.row_reductions import reduce_rows


def all_reduce(group: Group, buffer: torch.Tensor, reduction: str) -> Any:
    """Reduce a buffer over a group, in place."""
    if buffer.numel() == 0:
        return Pending(None, lambda: buffer)
    if group.host is not None:
        return all_reduce_on_host(group, buffer, reduction)
    if is_native_sum(reduction, buffer):
        return dist.all_reduce(buffer, group=group.process_group, async_op=True)
    kind = getattr(dist.ReduceOp, reduction.upper())
    keys = to_ordered_integers(buffer, reduction)
    work = dist.all_reduce(keys, kind, group.process_group, async_op=True)
    return Pending(work, from_ordered_integers, buffer, keys)


def is_native_sum(reduction: str, x: torch.Tensor) -> bool:
    """Whether a reduction is a sum of a type that processes add up."""
    return reduction == "sum" and (x.dtype.is_floating_point or x.dtype in NATIVE_DTYPES)


def to_ordered_integers(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Return integers in the order of the elements; NaN is the largest for `max`, else smallest.

    Libraries drop NaN from a maximum between processes.
    """
    if x.dtype == torch.bool:
        return x.view(torch.uint8)
    if not x.dtype.is_floating_point:
        return x if x.dtype in NATIVE_DTYPES else x.to(torch.int64)
    if x.dtype.itemsize == 2:
        x = x.to(torch.float32)
    integer = torch.int64 if x.dtype == torch.float64 else torch.int32
    bits = x.view(integer)
    ends = torch.iinfo(integer)
    keys = torch.where(bits < 0, bits ^ ends.max, bits)
    return keys.masked_fill_(x.isnan(), ends.max if reduction == "max" else ends.min)


def from_ordered_integers(buffer: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Put what `to_ordered_integers` made integers of into the buffer."""
    if not buffer.dtype.is_floating_point:
        return buffer.copy_(keys)  # nothing to do where the integers are the buffer itself
    bits = torch.where(keys < 0, keys ^ torch.iinfo(keys.dtype).max, keys)
    return buffer.copy_(bits.view(torch.float64 if keys.dtype == torch.int64 else torch.float32))


def reduce_scatter(
    group: Group, *operands: torch.Tensor, reduction: str, dimension: int
) -> Pending:
    """Reduce over a group and keep this process's part along a dimension.

    Several operands travel together, over a network in one buffer. Where the library below has
    nothing that reduces and scatters, each process gets its parts of all others, and reduces them
    by itself.
    """
    shapes = [part_shape(group, x, dimension) for x in operands]
    if group.host is not None:
        return reduce_scatter_on_host(group, operands, dimension, reduction, shapes)
    if not group.scatters and operands[0].numel():
        return exchange_parts(group, operands, dimension, reduction, shapes)
    pieces = split_operands(group, operands, dimension)
    if pieces.numel() == 0:
        return Pending(None, split_row, pieces.new_empty(pieces.shape[1:]), shapes)
    keys = pieces if is_native_sum(reduction, pieces) else to_ordered_integers(pieces, reduction)
    kind = getattr(dist.ReduceOp, reduction.upper())
    part = keys.new_empty(keys.shape[1:])
    work = dist.reduce_scatter_single(part, keys.view(-1), kind, group.process_group, async_op=True)
    return Pending(work, finish_row, part, pieces.dtype, shapes)


def exchange_parts(
    group: Group,
    operands: tuple[torch.Tensor, ...],
    dimension: int,
    reduction: str,
    shapes: list[torch.Size],
) -> Pending:
    """Send each process its parts of the operands, and reduce those that come.

    This process's own do not travel, unless they lie between those of others. Buffers are kept no
    longer than until the next exchange after they have arrived.
    """
    settle_begun(group)
    rows, own = split_apart(group, operands, dimension)
    parts, data = torch.empty_like(rows), flatten_elements(rows)
    sizes = [data.numel() // rows.shape[0]] * group.size
    if own is not None:
        sizes[group.place] = 0
    work = dist.all_to_all_single(
        flatten_elements(parts), data, sizes, sizes, group=group.process_group, async_op=True
    )
    pending = Pending(work, finish_parts, parts, own, reduction, shapes)
    group.begun.append(pending)
    return pending


def split_apart(
    group: Group, operands: tuple[torch.Tensor, ...], dimension: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the rows that travel, and this process's own if it does not."""
    place, last = group.place, group.size - 1
    if len(operands) == 1:
        rows = split_parts(group, operands[0], dimension).flatten(1)
        if place in (0, last):
            return (rows[1:], rows[0]) if place == 0 else (rows[:-1], rows[-1])
        return rows, None
    sizes = [x.numel() // group.size for x in operands]
    rows = operands[0].new_empty((group.size, sum(sizes)))
    if is_cut_in_rows(group, dimension, operands):
        cuts = [x.view(group.size, -1) for x in operands]
        torch.cat([cut[:place] for cut in cuts], 1, out=rows[:place])
        torch.cat([cut[place + 1 :] for cut in cuts], 1, out=rows[place:last])
        torch.cat([cut[place] for cut in cuts], out=rows[last])
        return rows[:-1], rows[-1]
    for x, row in zip(operands, rows.split(sizes, 1), strict=True):
        parts = view_parts(group, x, dimension)
        cut = row.unflatten(1, parts.shape[1:])
        cut[:place].copy_(parts[:place])
        cut[place:last].copy_(parts[place + 1 :])
        cut[last].copy_(parts[place])
    return rows[:-1], rows[-1]


def finish_parts(
    parts: torch.Tensor, own: torch.Tensor | None, reduction: str, shapes: list[torch.Size]
) -> Any:
    """Return the tensors of some shapes in the row that is the reduction of all rows."""
    rows = list(parts) if own is None else [*parts, own]
    total = reduce_rows(rows, reduction, in_place=True)
    return split_row(total.clone() if len(parts) > 1 else total, shapes)


def finish_row(row: torch.Tensor, dtype: torch.dtype, shapes: list[torch.Size]) -> Any:
    """Return the tensors of some shapes in a row that may be of `to_ordered_integers`."""
    if row.dtype != dtype:
        row = from_ordered_integers(row.new_empty(row.shape, dtype=dtype), row)
    return split_row(row, shapes)


def all_to_all(group: Group, *operands: torch.Tensor, split: int, concat: int) -> Pending:
    """Send each process its piece along `split`; join the pieces that come along `concat`.

    Those of several operands travel together.
    """
    if group.host is not None:
        return all_to_all_on_host(group, operands, split, concat)
    pieces = split_operands(group, operands, split)
    shapes = [part_shape(group, x, split) for x in operands]
    parts = torch.empty_like(pieces)
    work = None
    if pieces.numel():
        work = dist.all_to_all_single(
            flatten_elements(parts),
            flatten_elements(pieces),
            group=group.process_group,
            async_op=True,
        )
    return Pending(work, join_operands, group, parts, shapes, concat)


def permute(group: Group, *operands: torch.Tensor, pairs: tuple[tuple[int, int], ...]) -> Pending:
    """Send values on from place to place in a group; who gets none has zeros, and takes part.

    Several operands travel together.
    """
    if group.host is not None:
        return permute_on_host(group, operands, pairs)
    row, shapes = flatten_operands(operands), [x.shape for x in operands]
    if row.numel() == 0:
        return Pending(None, split_row, row, shapes)
    data = flatten_elements(row)
    sent, received = split_sizes(group, pairs, data.numel())
    result = torch.empty_like(row) if any(received) else torch.zeros_like(row)
    work = dist.all_to_all_single(
        flatten_elements(result) if any(received) else data[:0],
        data if any(sent) else data[:0],
        received,
        sent,
        group=group.process_group,
        async_op=True,
    )
    return Pending(work, split_row, result, shapes)


def split_sizes(
    group: Group, pairs: tuple[tuple[int, int], ...], size: int
) -> tuple[list[int], list[int]]:
    """Return how many elements go to each process, and come from each, where pairs exchange."""
    places = group.places or list(range(group.size))
    sent, received = [0] * group.size, [0] * group.size
    for source, target in pairs:
        if source == group.index:
            sent[places[target]] = size
        if target == group.index:
            received[places[source]] = size
    return sent, received


def all_reduce_now(group: Group, *operands: torch.Tensor, reduction: str) -> object:
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


def all_gather_now(group: Group, *operands: torch.Tensor, dimension: int) -> Any:
    """Return the parts of a group joined along a dimension, exchanged in one buffer."""
    flat, shapes = flatten_operands(operands), [x.shape for x in operands]
    if flat.numel() == 0:
        parts = flat.new_empty((group.size, 0))
        return join_operands(group, parts, shapes, dimension)
    found = wait_for_tensor(functional.all_gather_single(flatten_elements(flat), 0, group.name))
    parts = found.view(flat.dtype).view(group.size, flat.numel())
    return join_operands(group, parts, shapes, dimension)


def reduce_scatter_now(
    group: Group, *operands: torch.Tensor, reduction: str, dimension: int
) -> Any:
    """Return this process's part, along a dimension, of the reductions over a group."""
    rows = [split_parts(group, x, dimension).flatten(1) for x in operands]
    pieces = torch.cat(rows, 1) if len(rows) > 1 else rows[0]
    shapes = [part_shape(group, x, dimension) for x in operands]
    if pieces.numel() == 0:
        return split_row(pieces[0], shapes)
    if not group.scatters:
        data = flatten_elements(pieces.contiguous())
        parts = wait_for_tensor(functional.all_to_all_single(data, None, None, group.name))
        rows = list(parts.view(pieces.dtype).view(pieces.shape))
        return split_row(reduce_rows(rows, reduction), shapes)
    if not is_native_sum(reduction, pieces):
        return split_row(reduce_tensor(group, reduction, pieces)[group.place], shapes)
    found = functional.reduce_scatter_single(pieces.view(-1), "sum", 0, group.name)
    return split_row(wait_for_tensor(found), shapes)


def all_to_all_now(group: Group, *operands: torch.Tensor, split: int, concat: int) -> Any:
    """Return the pieces that come to this process, joined along `concat`."""
    rows = [split_parts(group, x, split).flatten(1) for x in operands]
    pieces = torch.cat(rows, 1) if len(rows) > 1 else rows[0]
    shapes = [part_shape(group, x, split) for x in operands]
    if pieces.numel():
        data = flatten_elements(pieces.contiguous())
        found = wait_for_tensor(functional.all_to_all_single(data, None, None, group.name))
        pieces = found.view(pieces.dtype).view(pieces.shape)
    return join_operands(group, pieces, shapes, concat)


def permute_now(group: Group, *operands: torch.Tensor, pairs: tuple[tuple[int, int], ...]) -> Any:
    """Return what another process sent on; who gets none has zeros, and takes part."""
    row, shapes = flatten_operands(operands), [x.shape for x in operands]
    if row.numel() == 0:
        return split_row(row, shapes)
    data = flatten_elements(row)
    sent, received = split_sizes(group, pairs, data.numel())
    given = data if any(sent) else data[:0]
    moved = wait_for_tensor(functional.all_to_all_single(given, received, sent, group.name))
    return split_row(moved.view(row.dtype) if any(received) else torch.zeros_like(row), shapes)


def wait_for_tensor(x: torch.Tensor) -> torch.Tensor:
    """Return x once its data is there."""
    found: torch.Tensor = functional.wait_tensor(x)
    return found


__all__ = [
    "all_gather_now", "all_reduce", "all_reduce_now", "all_to_all", "all_to_all_now",
    "permute", "permute_now", "reduce_scatter", "reduce_scatter_now",
]  # fmt: skip
