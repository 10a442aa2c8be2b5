"""Collectives of processes on one host, which read each other's memory; see `host_channels`.

Each operand goes by itself. What is read goes where it belongs, so that none is copied into a
buffer first, or out of it, where its parts lie behind one another in memory.
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
    kind, others = observe(group, "all_gather", own), group.host.channels
    received = {i: [x[i] for x in parts] for i in others}
    begun = group.host.send_and_receive(kind, dict.fromkeys(others, own), received)
    for x, rows in zip(own, parts, strict=True):
        rows[group.place].copy_(x)
    return Pending(begun, finish_join, group, parts, dimension)


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
    kind = observe(group, "reduce_scatter", cut)
    (label,) = group.host.reserve(f"{kind} of {reduction}", 1)
    rows = {i: [flatten_row(x[i]) for x in cut] for i in group.host.channels}
    own = [flatten_row(x[group.place]) for x in cut]
    totals = [torch.empty_like(x) for x in own]
    begun = HostReduction(group.host, label, rows, own, totals, reduction)
    group.host.begin(label, begun)
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
    parts = [x.new_empty(x.shape) for x in pieces]
    kind, others = observe(group, "all_to_all", pieces), group.host.channels
    sent, received = ({i: [x[i] for x in rows] for i in others} for rows in (pieces, parts))
    begun = group.host.send_and_receive(kind, sent, received)
    for x, rows in zip(pieces, parts, strict=True):
        rows[group.place].copy_(x[group.place])
    return Pending(begun, finish_pieces, group, parts, concat)


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
    kind = observe(group, "permute", own if targets or sources else [])
    made = [x.new_empty(x.shape) if sources else x.new_zeros(x.shape) for x in own]
    if group.place in sources:
        for x, result in zip(own, made, strict=True):
            result.copy_(x)
    sent = {i: own for i in targets if i != group.place}
    received = {i: made for i in sources if i != group.place}
    return Pending(group.host.send_and_receive(kind, sent, received), finish_permute, made)


def finish_permute(made: list[torch.Tensor]) -> object:
    """Return what came."""
    return tuple(made) if len(made) > 1 else made[0]


def all_reduce_on_host(group: Group, buffer: torch.Tensor, reduction: str) -> Pending:
    """Reduce a buffer over a group, in place."""
    row = flatten_row(buffer)
    kind = f"{observe(group, 'all_reduce', [row])} of {reduction}"
    if row.nbytes > WHOLE:
        begun = HostAllReduce(group.host, kind, group.place, row, reduction)
        return Pending(begun, finish_nothing)
    rows = row.new_empty((group.size, row.numel()))
    rows[group.place].copy_(row)
    others = group.host.channels
    sent = {i: [rows[group.place]] for i in others}
    read = group.host.send_and_receive(kind, sent, {i: [rows[i]] for i in others})
    return Pending(read, finish_all_reduce, row, rows, reduction)


def finish_all_reduce(row: torch.Tensor, rows: torch.Tensor, reduction: str) -> None:
    """Put the reduction of all rows, in the order of places, into one that the program has."""
    row.copy_(reduce_rows(list(rows), reduction))


def finish_nothing() -> None:
    """Do nothing: what was reduced in place is where it belongs."""


def observe(group: Group, kind: str, tensors: list[torch.Tensor]) -> str:
    """Tell whoever watches what this process puts in; return the kind of collective."""
    if group.observe is not None:
        group.observe(group, kind, tensors)
    return kind


__all__: list[str] = []
