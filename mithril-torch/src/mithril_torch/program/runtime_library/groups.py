"""Groups of devices that exchange data: one process group for each set of mesh axes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mithril_torch.program.runtime_library.host_rendezvous import open_channels


class Group:
    """The devices that this process exchanges data with over some mesh axes.

    Args:
        process_group: PyTorch's group, whose ranks stand in ascending order.
        ranks: the members in the order in which the axes count them.
        rank: this process.
    """

    def __init__(self, process_group: Any, ranks: list[int], rank: int) -> None:
        self.process_group = process_group
        self.name = process_group.group_name
        self.size = len(ranks)
        self.index = ranks.index(rank)
        ascending = sorted(ranks)
        # Where in PyTorch's order the members stand; None where both orders agree.
        self.places = None if ascending == ranks else [ascending.index(r) for r in ranks]
        self.place = self.index if self.places is None else self.places[self.index]
        # PyTorch makes a reduce_scatter over Gloo of an all_reduce, which sends twice the bytes. In
        # an all_gather Gloo has parts go around a ring, which takes longer than messages to a few.
        self.scatters = dist.get_backend(process_group) != "gloo"
        self.gathers = self.scatters or self.size > 8
        self.gathered = 0
        self.abandoned: list[Any] = []  # messages that an error has left behind
        self.begun: list[Any] = []  # exchanges whose buffers are still needed
        self.host: Any = None  # channels, if all are on one host and may read each other's memory
        self.observe: Any = None  # who is told of what goes over them


GROUPS: dict[Any, Any] = {}


def make_group(axes: str, groups: list[list[int]], *, cross_memory: bool = True) -> Group | None:
    """Return this process's group among groups of ranks, if it is in one.

    All processes make the same groups in the same order, those in none of them, too.

    Args:
        axes: of the mesh, along which the members differ.
        groups: the ranks of each.
        cross_memory: whether members that share a host read each other's memory, if they may.
    """
    key = (dist.group.WORLD, axes, str(groups), cross_memory)
    if key not in GROUPS:
        own, timeout = None, _read_timeout()
        for ranks in groups:
            made = dist.new_group(sorted(ranks), timeout=timeout, group_desc=axes)
            if dist.get_rank() in ranks:
                own = Group(made, ranks, dist.get_rank())
        if own is not None and cross_memory and own.size > 1 and not own.scatters:
            own.host = open_channels(own.process_group, own.place, timeout.total_seconds())
        GROUPS[key] = own
    found: Group | None = GROUPS[key]
    return found


def _read_timeout() -> timedelta:
    """Return how long the process group that the job was started with waits for the others.

    A new group would wait for half an hour, whatever that one was told.
    """
    world = dist.distributed_c10d._get_default_group()
    return world._get_backend(world._device_types[0]).options._timeout


def release_groups() -> None:
    """Let go of all groups, so that each ends as soon as PyTorch has forgotten it, too.

    A group's threads hold tensors and end with the last reference to the group. The process is
    aborted if they still let go of tensors when the interpreter has ended.
    """
    for group in GROUPS.values():
        if group is not None:
            group.process_group = group.host = None
    GROUPS.clear()


def axis_index(group: Group, device: Any) -> torch.Tensor:
    """Return this process's place in a group, as a scalar."""
    return torch.tensor(group.index, dtype=torch.int32, device=device)


__all__ = ["axis_index", "make_group"]
