"""Shared kernels of the ops that read and write at positions known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in
from mithril.engine.standard.table import kernel
from mithril.types import DType


@kernel(ops.DynamicSlice)
def dynamic_slice(op: ops.DynamicSlice, types: Types, xp: ArrayNamespace) -> Run:
    """Elements taken along one dimension after the other."""
    shape = types[0].shape

    def run(x: Any, *starts: Any) -> Any:
        for axis, size, start in zip(op.axes, op.sizes, starts, strict=True):
            x = read_part(x, axis, _move_in(start, shape[axis] - size, xp), size, xp)
        return x

    return run


@kernel(ops.DynamicUpdateSlice)
def dynamic_update_slice(op: ops.DynamicUpdateSlice, types: Types, xp: ArrayNamespace) -> Run:
    """The update where an element lies in it, x elsewhere; x is not written into."""
    shape, update_shape = types[0].shape, types[1].shape

    def run(x: Any, update: Any, *starts: Any) -> Any:
        if 0 in update_shape:
            return x
        inside: Any = None
        for axis, start in zip(op.axes, starts, strict=True):
            size, whole = update_shape[axis], shape[axis]
            at = _count(whole, xp) - _move_in(start, whole - size, xp)
            here = _stand_along((at >= 0) & (at < size), axis, len(shape), xp)
            inside = here if inside is None else inside & here
            update = xp.take(update, _clip(at, size - 1, xp), axis=axis)
        return update if inside is None else xp.where(inside, update, x)

    return run


def read_part(x: Any, axis: int, start: Any, size: int, xp: ArrayNamespace) -> Any:
    """Return some elements along a dimension from a start, an integer array of rank 0."""
    return xp.take(x, start + _count(size, xp), axis=axis)


def _move_in(start: Any, last: int, xp: ArrayNamespace) -> Any:
    """Return a start that lies in 0 … last."""
    return _clip(xp.astype(start, dtype_in(xp, DType.int64), copy=False), last, xp)


def _clip(x: Any, last: int, xp: ArrayNamespace) -> Any:
    dtype = dtype_in(xp, DType.int64)
    return xp.minimum(xp.maximum(x, xp.asarray(0, dtype=dtype)), xp.asarray(last, dtype=dtype))


def _count(size: int, xp: ArrayNamespace) -> Any:
    return xp.arange(size, dtype=dtype_in(xp, DType.int64))


def _stand_along(x: Any, axis: int, rank: int, xp: ArrayNamespace) -> Any:
    """Return a row as an array of a rank that varies along one dimension."""
    shape: Sequence[int] = [1] * axis + [x.shape[0]] + [1] * (rank - axis - 1)
    return xp.reshape(x, tuple(shape))
