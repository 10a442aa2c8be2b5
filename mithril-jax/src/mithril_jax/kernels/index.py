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
from mithril.spi import DType, KernelRun, TensorType, Types, accumulator, ops

from mithril_jax.kernels.table import kernel


@kernel(ops.Take)
def take(op: ops.Take, types: Types) -> KernelRun:
    """Rows copied out of the table."""
    nowhere = missing_value(types[0]) if len(types) == 2 else 0

    def run(table: Any, ids: Any, *offset: Any) -> Any:
        rows = table.at[_local(ids, offset)]
        taken = rows.get(mode="fill", fill_value=nowhere, wrap_negative_indices=False)
        if not op.rows:
            return taken
        known = (ids >= 0) & (ids < op.rows)
        known = lax.broadcast_in_dim(known, taken.shape, tuple(range(ids.ndim)))
        return lax.select(known, taken, jnp.full_like(taken, missing_value(types[0])))

    return run


@kernel(ops.ScatterAdd)
def scatter_add(op: ops.ScatterAdd, types: Types) -> KernelRun:
    """Sums of the updates that go to the same row."""
    (result,) = op.infer(types)
    dtype, accumulate = result.dtype.numpy, adding_dtype(result)

    def run(ids: Any, updates: Any, *offset: Any) -> Any:
        rows = jnp.zeros(result.shape, accumulate).at[_local(ids, offset)]
        updates = lax.convert_element_type(updates, accumulate)
        total = rows.add(updates, mode="drop", wrap_negative_indices=False)
        return lax.convert_element_type(total, dtype)

    return run


@kernel(ops.OneHot)
def one_hot(op: ops.OneHot, types: Types) -> KernelRun:
    """1 at the place an id names."""
    rank = types[0].rank
    shape = (*types[0].shape, op.classes)

    def run(ids: Any, *offset: Any) -> Any:
        local = _local(ids, offset)
        places = lax.broadcasted_iota(local.dtype, shape, rank)
        hit = lax.eq(lax.broadcast_in_dim(local, shape, tuple(range(rank))), places)
        return lax.convert_element_type(hit, op.dtype.numpy)

    return run


@kernel(ops.Iota)
def iota(op: ops.Iota, types: Types) -> KernelRun:
    """Numbers that count along a dimension."""
    dtype = op.dtype.numpy

    def run(*offset: Any) -> Any:
        counted = lax.broadcasted_iota(dtype, op.shape, op.axis)
        return counted + lax.convert_element_type(offset[0], dtype) if offset else counted

    return run


def _local(ids: Any, offset: tuple[Any, ...]) -> Any:
    """Return ids as signed numbers, counted from the offset."""
    ids = lax.convert_element_type(ids, np.int32) if ids.dtype.itemsize <= 4 else ids
    return ids - lax.convert_element_type(offset[0], ids.dtype) if offset else ids


def adding_dtype(result: TensorType) -> np.dtype[Any]:
    """Return the dtype in which updates are added up; JAX does not add booleans."""
    is_bool = result.dtype == DType.bool_
    return np.dtype(np.int32) if is_bool else accumulator(result.dtype)


def missing_value(type: TensorType) -> Any:
    """Return what stands where an id names no row."""
    return np.asarray(math.nan if type.dtype.is_float else 0, type.dtype.numpy)
