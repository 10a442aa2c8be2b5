"""Collectives of processes on one host, which read each other's memory; see `host_channels`.

What is read goes where it belongs, so that no operand is copied into a buffer first, and none out
of it, where its parts lie behind one another in memory.
"""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.exchange_layout import (
    flatten_row,
    is_cut_in_rows,
    join_parts,
    split_parts,
)
from mithril_torch.program.runtime_library.groups import Group
from mithril_torch.program.runtime_library.host_reductions import HostAllReduce, HostReduction
from mithril_torch.program.runtime_library.pending import Pending
from mithril_torch.program.runtime_library.row_reductions import reduce_rows

WHOLE = 1 << 14
"""Bytes up to which every process reads all that the others add, and adds it up for itself."""


def all_gather_on_host(group: Group, operands: tuple[torch.Tensor, ...], dimension: int) -> Pending:
    """Join the parts of a group along a dimension."""
    own = [x.contiguous() for x in operands]
    parts = [x.new_empty((group.size, *x.shape)) for x in own]
    observe(group, "all_gather", own)
    others = group.host.channels
    sent = dict.fromkeys(others, own)
    exchange = group.host.send_and_receive(sent, {i: [x[i] for x in parts] for i in others})
    for x, rows in zip(own, parts, strict=True):
        rows[group.place].copy_(x)
    return Pending(exchange, finish_join, group, parts, dimension)


def finish_join(group: Group, parts: list[torch.Tensor], dimension: int) -> object:
    """Return what came, joined along a dimension."""
    if is_cut_in_rows(group, dimension):
        made = tuple(rows.flatten(0, 1) for rows in parts)
    else:
        made = tuple(join_parts(group, rows, dimension).contiguous() for rows in parts)
    return made if len(made) > 1 else made[0]


def reduce_scatter_on_host(
    group: Group,
    operands: tuple[torch.Tensor, ...],
    dimension: int,
    reduction: str,
    shapes: list[torch.Size],
) -> Pending:
    """Reduce over a group and keep this process's part along a dimension, of some shapes."""
    cut = [split_parts(group, x, dimension) for x in operands]
    observe(group, "reduce_scatter", cut)
    (number,) = group.host.reserve(1)
    rows = {i: [flatten_row(x[i]) for x in cut] for i in group.host.channels}
    own = [flatten_row(x[group.place]) for x in cut]
    totals = [torch.empty_like(x) for x in own]
    begun = HostReduction(group.host, number, rows, own, totals, reduction)
    group.host.begin(number, begun)
    return Pending(begun, finish_parts_on_host, totals, shapes)


def finish_parts_on_host(totals: list[torch.Tensor], shapes: list[torch.Size]) -> object:
    """Return tensors of some shapes."""
    made = tuple(x.view(shape) for x, shape in zip(totals, shapes, strict=True))
    return made if len(made) > 1 else made[0]


def all_to_all_on_host(
    group: Group, operands: tuple[torch.Tensor, ...], split: int, concat: int
) -> Pending:
    """Send each process its piece along `split`; join the pieces that come along `concat`."""
    pieces = [split_parts(group, x, split) for x in operands]
    parts = [torch.empty_like(x) for x in pieces]
    observe(group, "all_to_all", pieces)
    others = group.host.channels
    sent = {i: [x[i] for x in pieces] for i in others}
    exchange = group.host.send_and_receive(sent, {i: [x[i] for x in parts] for i in others})
    for x, rows in zip(pieces, parts, strict=True):
        rows[group.place].copy_(x[group.place])
    return Pending(exchange, finish_pieces, group, parts, concat)


def finish_pieces(group: Group, parts: list[torch.Tensor], dimension: int) -> object:
    """Return the pieces that came, joined along a dimension."""
    made = tuple(join_parts(group, rows, dimension).contiguous() for rows in parts)
    return made if len(made) > 1 else made[0]


def permute_on_host(
    group: Group, operands: tuple[torch.Tensor, ...], pairs: tuple[tuple[int, int], ...]
) -> Pending:
    """Send values on from place to place in a group; who gets none has zeros, and takes part."""
    own = [x.contiguous() for x in operands]
    places = group.places or list(range(group.size))
    targets = [places[target] for source, target in pairs if source == group.index]
    sources = [places[source] for source, target in pairs if target == group.index]
    observe(group, "permute", own if targets or sources else [])
    made = [torch.empty_like(x) if sources else torch.zeros_like(x) for x in own]
    if group.place in sources:
        for x, result in zip(own, made, strict=True):
            result.copy_(x)
    sent = {i: own for i in targets if i != group.place}
    exchange = group.host.send_and_receive(sent, {i: made for i in sources if i != group.place})
    return Pending(exchange, finish_permute, made)


def finish_permute(made: list[torch.Tensor]) -> object:
    """Return what came."""
    return tuple(made) if len(made) > 1 else made[0]


def all_reduce_on_host(group: Group, buffer: torch.Tensor, reduction: str) -> Pending:
    """Reduce a buffer over a group, in place."""
    row = flatten_row(buffer)
    observe(group, "all_reduce", [row])
    if row.nbytes > WHOLE:
        return Pending(HostAllReduce(group.host, group.place, row, reduction), finish_nothing)
    rows = row.new_empty((group.size, row.numel()))
    rows[group.place].copy_(row)
    others = group.host.channels
    sent = {i: [rows[group.place]] for i in others}
    exchange = group.host.send_and_receive(sent, {i: [rows[i]] for i in others})
    return Pending(exchange, finish_all_reduce, row, rows, reduction)


def finish_all_reduce(row: torch.Tensor, rows: torch.Tensor, reduction: str) -> None:
    """Put the reduction of all rows, in the order of places, into one that the program has."""
    row.copy_(reduce_rows(list(rows), reduction))


def finish_nothing() -> None:
    """Do nothing: what was reduced in place is where it belongs."""


def observe(group: Group, kind: str, tensors: list[torch.Tensor]) -> None:
    """Tell whoever watches what this process puts in."""
    if group.observe is not None:
        group.observe(group, kind, tensors)


__all__: list[str] = []
