"""Functions that read and write at positions known only when a program runs.

A position that lies too far out is moved in. On the CPU a position is a number at once; elsewhere
the program would have to wait for the device, so that it stays there.
"""

from __future__ import annotations

import sys
from functools import cache

import torch

from mithril_torch.program.runtime_library.tracing import is_traced


def slice_at(
    x: torch.Tensor, starts: tuple[torch.Tensor, ...], axes: tuple[int, ...], sizes: tuple[int, ...]
) -> torch.Tensor:
    """Return a copy of a part of x."""
    if is_on_host(x):
        return narrow_to(x, starts, axes, sizes).clone()
    for start, axis, size in zip(starts, axes, sizes, strict=True):
        x = torch.index_select(x, axis, indices_from(x, start, axis, size))
    return x


def update_slice(
    x: torch.Tensor, update: torch.Tensor, starts: tuple[torch.Tensor, ...], axes: tuple[int, ...]
) -> torch.Tensor:
    """Return a copy of x with a part replaced."""
    return write_slice(x.clone(memory_format=torch.contiguous_format), update, starts, axes)


def update_slice_in_place(
    x: torch.Tensor, update: torch.Tensor, starts: tuple[torch.Tensor, ...], axes: tuple[int, ...]
) -> torch.Tensor:
    """Return x with a part replaced, in its memory if the program that was given x has it alone.

    Views and other handles count as owners. Memory that NumPy or another library has, or was shown,
    cannot be resized.
    """
    if is_traced():
        return update_slice(x, update, starts, axes)
    if sys.getrefcount(x) > count_holders() or find_shared([x])[0]:
        return update_slice(x, update, starts, axes)
    return write_slice(x, update, starts, axes)


def find_shared(tensors: list[torch.Tensor]) -> list[bool]:
    """Return of each tensor whether anything but Python's references to it has its memory."""
    count_users = torch._C._storage_Use_Count
    return [
        x._use_count() > 1  # type: ignore[attr-defined]
        or count_users((memory := x.untyped_storage())._cdata) > 2
        or not memory.resizable()
        for x in tensors
    ]


@cache
def count_holders() -> int:
    """Return how often a tensor that is given up is referred to in a function a program calls.

    Its handle and the list of inputs refer to it, the variable of the program and the parameter.
    """
    handle = [torch.empty(1)]
    inputs = [handle[0]]
    variable = inputs[0]
    return count_references(variable)


def count_references(x: torch.Tensor) -> int:
    """Return how often a tensor is referred to, a parameter of this function included."""
    return sys.getrefcount(x)


def write_slice(
    x: torch.Tensor, update: torch.Tensor, starts: tuple[torch.Tensor, ...], axes: tuple[int, ...]
) -> torch.Tensor:
    """Write into x where it lies."""
    if is_on_host(x):
        sizes = tuple(update.shape[axis] for axis in axes)
        narrow_to(x, starts, axes, sizes).copy_(update)
        return x
    if not axes:
        return x.copy_(update)
    (start, *later), (axis, *others) = starts, axes
    places = indices_from(x, start, axis, update.shape[axis])
    if later:
        rows = torch.index_select(x, axis, places)
        update = write_slice(rows, update, tuple(later), tuple(others))
    return x.index_copy_(axis, places, update)


def is_on_host(x: torch.Tensor) -> bool:
    """Whether a position can be looked at without waiting for a device."""
    return x.device.type == "cpu" and not is_traced()


def narrow_to(
    x: torch.Tensor, starts: tuple[torch.Tensor, ...], axes: tuple[int, ...], sizes: tuple[int, ...]
) -> torch.Tensor:
    """Return a part of x as a view."""
    for start, axis, size in zip(starts, axes, sizes, strict=True):
        x = x.narrow(axis, min(max(int(start), 0), x.shape[axis] - size), size)
    return x


def indices_from(x: torch.Tensor, start: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Return the places of a part along a dimension."""
    first = start.to(torch.int64).clamp(0, x.shape[axis] - size)
    return first + torch.arange(size, device=x.device)


__all__ = ["slice_at", "update_slice", "update_slice_in_place"]
