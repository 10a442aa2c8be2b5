"""Kernels of the ops that read and write at positions known only at run time.

MLX writes into the memory of an array that nobody else holds when it comes to it; see `lazy`.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mithril.spi import KernelRun, Shape, TensorType, Types, ops

from mithril_mlx.kernels.elementwise import number
from mithril_mlx.kernels.shape import fill
from mithril_mlx.kernels.table import kernel


@kernel(ops.DynamicSlice)
def dynamic_slice(op: ops.DynamicSlice, types: Types) -> KernelRun:
    """A part from positions that are moved in."""
    (result,) = op.infer(types)
    if not op.axes:
        return lambda x: x
    if not result.size:
        return fill(0, result)
    axes, shape, place = op.axes, result.shape, _places(op.axes, types[0], result.shape, types[1:])
    return lambda x, *starts: mx.slice(x, place(starts), axes, shape)


@kernel(ops.DynamicUpdateSlice)
def dynamic_update_slice(op: ops.DynamicUpdateSlice, types: Types) -> KernelRun:
    """A part put in at positions that are moved in."""
    if not op.axes:
        return lambda x, update: update
    if not types[1].size:
        return lambda x, *others: x
    axes, place = op.axes, _places(op.axes, types[0], types[1].shape, types[2:])
    return lambda x, update, *starts: mx.slice_update(x, update, place(starts), axes)


def _places(axes: tuple[int, ...], whole: TensorType, part: Shape, starts: Types) -> KernelRun:
    """Return the function from starts to an array of int32, each moved in."""
    bounds = [
        (number(0, t.dtype), number(min(whole.shape[axis] - part[axis], _most(t)), t.dtype))
        for axis, t in zip(axes, starts, strict=True)
    ]

    def places(given: Sequence[mx.array]) -> mx.array:
        near = (
            mx.clip(start, low, high).astype(mx.int32)
            for start, (low, high) in zip(given, bounds, strict=True)
        )
        return mx.stack(list(near))

    return places


def _most(type: TensorType) -> int:
    """Return the largest number of an integer dtype."""
    bits = 8 * type.dtype.itemsize
    return (1 << bits if type.dtype.startswith("u") else 1 << (bits - 1)) - 1
