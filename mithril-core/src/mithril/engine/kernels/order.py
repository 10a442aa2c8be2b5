"""Kernels of the ops along one dimension: order, picking by position."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import order as ops
from mithril.ops.index import check_ids
from mithril.types import DType


@kernel(ops.Argsort)
def argsort(op: ops.Argsort, types: Types, xp: ModuleType) -> Run:
    """Positions by a stable sort."""
    order = _order(op.axis, op.descending, xp)
    return lambda x: xp.asarray(order(x), dtype=np.int32)


@kernel(ops.Sort)
def sort(op: ops.Sort, types: Types, xp: ModuleType) -> Run:
    """Sorted rows; in descending order NaN still comes last."""
    order = _order(op.axis, op.descending, xp)
    if op.descending or types[0].dtype == DType.bfloat16:
        return lambda x: np.take_along_axis(x, order(x), op.axis)
    return lambda x: xp.sort(x, axis=op.axis)


@kernel(ops.TopK)
def top_k(op: ops.TopK, types: Types, xp: ModuleType) -> Run:
    """The first k of a stable descending sort."""
    order = _order(op.axis, True, xp)
    first = (*(slice(None),) * op.axis, slice(op.k))

    def run(x: Any) -> Any:
        positions = order(x)[first]
        return np.take_along_axis(x, positions, op.axis), xp.asarray(positions, dtype=np.int32)

    return run


@kernel(ops.TakeAlong)
def take_along(op: ops.TakeAlong, types: Types, xp: ModuleType) -> Run:
    """Elements by position, row by row."""
    size = op.whole or types[0].shape[op.axis]

    def run(x: Any, indices: Any) -> Any:
        check_ids("take_along", indices, size, xp)
        return np.take_along_axis(x, xp.asarray(indices, dtype=np.int64), op.axis)

    return run


@kernel(ops.ScatterAlong)
def scatter_along(op: ops.ScatterAlong, types: Types, xp: ModuleType) -> Run:
    """Sums of the updates that go to one place, in float32 for 16-bit floats."""
    (result,) = op.infer(types)
    dtype, wide = result.dtype.numpy, accumulator(result.dtype)
    rows = math.prod(n for i, n in enumerate(result.shape) if i != op.axis)
    count = types[0].shape[op.axis]

    def run(indices: Any, updates: Any) -> Any:
        check_ids("scatter_along", indices, op.whole or op.size, xp)
        total = xp.zeros((rows, op.size), dtype=wide)
        at = np.moveaxis(indices, op.axis, -1).reshape(rows, count)
        values = np.moveaxis(updates, op.axis, -1).reshape(rows, count)
        np.add.at(total, (np.arange(rows)[:, None], at), values)
        outer = [n for i, n in enumerate(result.shape) if i != op.axis]
        return xp.asarray(np.moveaxis(total.reshape(*outer, op.size), -1, op.axis), dtype=dtype)

    return run


def _order(axis: int, descending: bool, xp: ModuleType) -> Run:
    """Return the function that gives the positions of rows in order, equal elements as they are."""
    if not descending:
        return lambda x: np.argsort(_comparable(x), axis=axis, kind="stable")

    def run(x: Any) -> Any:
        x = _comparable(x)
        # A stable ascending sort from the other end, read backwards, is a stable descending one.
        size = x.shape[axis]
        backwards = np.argsort(np.flip(x, axis=axis), axis=axis, kind="stable")
        order = size - 1 - np.flip(backwards, axis=axis)
        return _nan_last(x, order, axis) if x.dtype.kind not in "biu" else order

    return run


def _comparable(x: Any) -> Any:
    """Return numbers that NumPy sorts with NaN last; that of bfloat16 it puts anywhere."""
    return x.astype(np.float32) if x.dtype == DType.bfloat16.numpy else x


def _nan_last(x: Any, order: Any, axis: int) -> Any:
    is_nan = np.isnan(np.take_along_axis(x, order, axis))
    if not is_nan.any():
        return order
    return np.take_along_axis(order, np.argsort(is_nan, axis=axis, kind="stable"), axis)
