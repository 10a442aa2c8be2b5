"""Kernels of the ops that read and write at positions known only at run time."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mithril.engine.kernels.ownership import is_alone
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
        if not is_alone(x):
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
