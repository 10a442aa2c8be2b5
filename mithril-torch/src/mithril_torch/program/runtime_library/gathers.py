"""All-gathers, started early and waited for late.

Over Gloo they are messages between all pairs of a group of a few: Gloo itself passes parts on
around a ring, which takes longer, and into a buffer, from which they would have to be copied.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from mithril_torch.program.runtime_library.exchange_layout import (
    flatten_elements,
    flatten_operands,
    is_cut_in_rows,
    join_operands,
)
from mithril_torch.program.runtime_library.groups import Group
from mithril_torch.program.runtime_library.host_collectives import all_gather_on_host
from mithril_torch.program.runtime_library.pending import (
    Messages,
    Pending,
    settle_abandoned,
    settle_begun,
)

AT_ONCE = 1 << 16
"""How many gathers over a group may be on their way."""
APART = 128 << 10
"""Bytes from which on a message costs less than copies into a buffer and out of it."""


def all_gather(group: Group, *operands: torch.Tensor, dimension: int) -> Pending:
    """Join the parts of a group along a dimension; several operands travel together."""
    if group.host is not None:
        return all_gather_on_host(group, operands, dimension)
    settle_begun(group)
    if not group.gathers and operands[0].device.type == "cpu":
        return gather_by_messages(group, operands, dimension)
    flat = flatten_operands(operands)
    parts = flat.new_empty((group.size, flat.numel()))
    work = None
    if flat.numel():
        work = dist.all_gather_single(
            flatten_elements(parts),
            flatten_elements(flat),
            group=group.process_group,
            async_op=True,
        )
    return Pending(work, join_operands, group, parts, [x.shape for x in operands], dimension)


def gather_by_messages(group: Group, operands: tuple[torch.Tensor, ...], dimension: int) -> Pending:
    """Send the parts of this process to all others; large ones arrive where they belong.

    Where parts lie behind one another in what they make, they need no buffer, and no copy from it.
    """
    settle_abandoned(group)
    group.gathered += 1
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    made: list[torch.Tensor | None] = [None] * len(operands)
    packed: list[int] = []
    for i, x in enumerate(operands):
        if x.nbytes < APART or not is_cut_in_rows(group, dimension):
            packed.append(i)
            continue
        row = x.contiguous()
        rows = row.new_empty((group.size, *row.shape))
        parts.append((row, rows))
        made[i] = rows.flatten(0, 1)
    few, together = tuple(operands[i] for i in packed), None
    if few:
        flat = flatten_operands(few)
        together = flat.new_empty((group.size, flat.numel()))
        if flat.numel():
            parts.append((flat, together))
    sent = Messages(group, exchange_rows(group, parts))
    shapes = [x.shape for x in few]
    return Pending(sent, finish_gather, group, made, packed, together, shapes, dimension)


def finish_gather(
    group: Group,
    made: list[Any],
    packed: list[int],
    parts: torch.Tensor | None,
    shapes: list[torch.Size],
    dimension: int,
) -> Any:
    """Return what was gathered, with what came in one buffer put in its place."""
    if parts is not None:
        joined = join_operands(group, parts, shapes, dimension)
        for i, x in zip(packed, joined if len(packed) > 1 else [joined], strict=True):
            made[i] = x
    return tuple(made) if len(made) > 1 else made[0]


def exchange_rows(group: Group, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
    """Send rows to all others of a group, and receive theirs where they stand.

    The messages of one gather have one tag; those of two processes arrive in the order in which
    they were sent. Receives are posted before sends: while something arrives over a connection,
    Gloo lets the next receive from there wait.

    Args:
        group: of a few processes.
        parts: rows of this process, each with a tensor of those of all processes.

    Returns:
        What to wait for.
    """
    gloo, tag, others = group.process_group, group.gathered % AT_ONCE, range(1, group.size)
    works: list[Any] = []
    for step in others:
        source = (group.place - step) % group.size
        works += [gloo.recv([flatten_elements(rows[source])], source, tag) for _, rows in parts]
    for row, _ in parts:
        own = flatten_elements(row)
        works += [gloo.send([own], (group.place + step) % group.size, tag) for step in others]
    for row, rows in parts:
        rows[group.place].copy_(row)
    return works


__all__ = ["all_gather"]
