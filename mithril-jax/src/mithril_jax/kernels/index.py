"""Kernels of the ops that choose by integers.

A compiled program cannot refuse an id that names no row: such rows are NaN (0 of integers), and
what is added there is dropped. With an offset the operand holds only a part of the rows, and ids
that lie elsewhere give zeros.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from mithril.engine.kernels.registry import Run
from mithril.ops import index, order
from mithril.types import TensorType

from mithril_jax.kernels.reduction import wide
from mithril_jax.kernels.registry import Types, kernel


@kernel(index.Take)
def take(op: index.Take, types: Types) -> Run:
    """Rows copied out of the table."""
    nowhere = _missing_value(types[0]) if len(types) == 2 else 0

    def run(table: Any, ids: Any, *offset: Any) -> Any:
        rows = table.at[_local(ids, offset)]
        taken = rows.get(mode="fill", fill_value=nowhere, wrap_negative_indices=False)
        if not op.rows:
            return taken
        known = (ids >= 0) & (ids < op.rows)
        known = lax.broadcast_in_dim(known, taken.shape, tuple(range(ids.ndim)))
        return lax.select(known, taken, jnp.full_like(taken, _missing_value(types[0])))

    return run


@kernel(index.ScatterAdd)
def scatter_add(op: index.ScatterAdd, types: Types) -> Run:
    """Sums of the updates that go to the same row."""
    (result,) = op.infer(types)
    dtype, accumulate = result.dtype.numpy, wide(result)

    def run(ids: Any, updates: Any, *offset: Any) -> Any:
        rows = jnp.zeros(result.shape, accumulate).at[_local(ids, offset)]
        updates = lax.convert_element_type(updates, accumulate)
        total = rows.add(updates, mode="drop", wrap_negative_indices=False)
        return lax.convert_element_type(total, dtype)

    return run


@kernel(index.OneHot)
def one_hot(op: index.OneHot, types: Types) -> Run:
    """1 at the place an id names."""
    rank = types[0].rank
    shape = (*types[0].shape, op.classes)

    def run(ids: Any, *offset: Any) -> Any:
        local = _local(ids, offset)
        places = lax.broadcasted_iota(local.dtype, shape, rank)
        hit = lax.eq(lax.broadcast_in_dim(local, shape, tuple(range(rank))), places)
        return lax.convert_element_type(hit, op.dtype.numpy)

    return run


@kernel(index.Iota)
def iota(op: index.Iota, types: Types) -> Run:
    """Numbers that count along a dimension."""
    dtype = op.dtype.numpy

    def run(*offset: Any) -> Any:
        counted = lax.broadcasted_iota(dtype, op.shape, op.axis)
        return counted + lax.convert_element_type(offset[0], dtype) if offset else counted

    return run


@kernel(order.Sort)
def sort(op: order.Sort, types: Types) -> Run:
    """Sorted rows, NaN last."""
    return lambda x: _sort(op.axis, op.descending, x)[0]


@kernel(order.Argsort)
def argsort(op: order.Argsort, types: Types) -> Run:
    """Positions by a stable sort."""
    return lambda x: _sort(op.axis, op.descending, x)[1]


@kernel(order.TopK)
def top_k(op: order.TopK, types: Types) -> Run:
    """The first k of a stable descending sort."""

    def run(x: Any) -> Any:
        return tuple(lax.slice_in_dim(y, 0, op.k, axis=op.axis) for y in _sort(op.axis, True, x))

    return run


def _sort(axis: int, descending: bool, x: Any) -> tuple[Any, Any]:
    """Return sorted rows and where they come from; equal elements stay in their order."""
    places = lax.broadcasted_iota(np.int32, x.shape, axis)
    if not descending:
        values, positions = lax.sort((x, places), dimension=axis, is_stable=True, num_keys=1)
        return values, positions
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    key = lax.neg(x) if is_float else lax.bitwise_not(x)  # both turn the order around
    _, values, positions = lax.sort((key, x, places), dimension=axis, is_stable=True, num_keys=1)
    return values, positions


@kernel(order.TakeAlong)
def take_along(op: order.TakeAlong, types: Types) -> Run:
    """Elements by position, row by row."""
    nowhere = _missing_value(types[0])

    def run(x: Any, indices: Any) -> Any:
        at = x.at[_grid(indices, op.axis)]
        return at.get(mode="fill", fill_value=nowhere, wrap_negative_indices=False)

    return run


@kernel(order.ScatterAlong)
def scatter_along(op: order.ScatterAlong, types: Types) -> Run:
    """Sums of the updates that go to one place."""
    (result,) = op.infer(types)
    dtype, accumulate = result.dtype.numpy, wide(result)

    def run(indices: Any, updates: Any) -> Any:
        at = jnp.zeros(result.shape, accumulate).at[_grid(indices, op.axis)]
        updates = lax.convert_element_type(updates, accumulate)
        total = at.add(updates, mode="drop", wrap_negative_indices=False)
        return lax.convert_element_type(total, dtype)

    return run


def _grid(indices: Any, axis: int) -> tuple[Any, ...]:
    """Return an index that goes its own way along one dimension and straight along the others."""
    shape = indices.shape
    grid = [lax.broadcasted_iota(np.int32, shape, i) for i in range(len(shape))]
    grid[axis] = indices
    return tuple(grid)


def _local(ids: Any, offset: tuple[Any, ...]) -> Any:
    """Return ids as signed numbers, counted from the offset."""
    ids = lax.convert_element_type(ids, np.int32) if ids.dtype.itemsize <= 4 else ids
    return ids - lax.convert_element_type(offset[0], ids.dtype) if offset else ids


def _missing_value(type: TensorType) -> Any:
    """Return what stands where an id names no row."""
    return np.asarray(math.nan if type.dtype.is_float else 0, type.dtype.numpy)
