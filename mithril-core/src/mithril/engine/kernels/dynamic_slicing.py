"""Kernels of the ops that read and write at positions known only at run time."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import dynamic_slicing as ops
from mithril.types import Shape


@kernel(ops.DynamicSlice)
def dynamic_slice(op: ops.DynamicSlice, types: Types, xp: ModuleType) -> Run:
    """A copy: a view would keep the whole alive, and show what is written into it."""
    index = _index(op.axes, types[0].shape, op.sizes)
    return lambda x, *starts: x[index(starts)].copy()


@kernel(ops.DynamicUpdateSlice)
def dynamic_update_slice(op: ops.DynamicUpdateSlice, types: Types, xp: ModuleType) -> Run:
    """A copy that is written to, or the memory of x itself where that is nobody else's."""
    x, update = types[:2]
    index = _index(op.axes, x.shape, tuple(update.shape[axis] for axis in op.axes))

    def write_copy(x: Any, update: Any, *starts: Any) -> Any:
        whole = xp.asarray(x, copy=True)
        whole[index(starts)] = update
        return whole

    def write_in_place(x: Any, update: Any, *starts: Any) -> Any:
        if not (x.flags.owndata and x.flags.writeable and sys.getrefcount(x) <= _HELD):
            return write_copy(x, update, *starts)
        x[index(starts)] = update
        return x

    return write_in_place if op.in_place else write_copy


def _index(axes: tuple[int, ...], shape: Shape, sizes: tuple[int, ...]) -> Run:
    """Return the function from starts to the slices they mean, each moved in."""
    most = max(axes, default=-1) + 1
    bounds = [(axis, size, shape[axis] - size) for axis, size in zip(axes, sizes, strict=True)]

    def index(starts: Any) -> tuple[slice, ...]:
        found = [slice(None)] * most
        for (axis, size, last), start in zip(bounds, starts, strict=True):
            first = min(max(int(start), 0), last)
            found[axis] = slice(first, first + size)
        return tuple(found)

    return index


def _count_holders() -> int:
    """Return how often an array is referred to inside a kernel where its handle alone holds it.

    A view, an array that a user read, or another handle would each be one more: NumPy finds out in
    the same way whether it may reuse a temporary.
    """
    handle = [np.empty(1)]
    x = handle[0]
    return _count_references(x, handle)


def _count_references(x: Any, *others: Any) -> int:
    """Return how often an array is referred to, called as kernels are."""
    return sys.getrefcount(x)


_HELD = _count_holders()
