"""Kernels of the ops along one dimension: order, picking by position, adding by position."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from mithril.spi import KernelRun, Types, ops

from mithril_jax.kernels.index import adding_dtype, missing_value
from mithril_jax.kernels.table import kernel


@kernel(ops.Sort)
def sort(op: ops.Sort, types: Types) -> KernelRun:
    """Sorted rows, NaN last."""
    return lambda x: _sort(op.axis, op.descending, x)[0]


@kernel(ops.Argsort)
def argsort(op: ops.Argsort, types: Types) -> KernelRun:
    """Positions by a stable sort."""
    return lambda x: _sort(op.axis, op.descending, x)[1]


@kernel(ops.TopK)
def top_k(op: ops.TopK, types: Types) -> KernelRun:
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


@kernel(ops.TakeAlong)
def take_along(op: ops.TakeAlong, types: Types) -> KernelRun:
    """Elements by position, row by row."""
    nowhere = missing_value(types[0])

    def run(x: Any, indices: Any) -> Any:
        at = x.at[_grid(indices, op.axis)]
        return at.get(mode="fill", fill_value=nowhere, wrap_negative_indices=False)

    return run


@kernel(ops.ScatterAlong)
def scatter_along(op: ops.ScatterAlong, types: Types) -> KernelRun:
    """Sums of the updates that go to one place."""
    (result,) = op.infer(types)
    dtype, accumulate = result.dtype.numpy, adding_dtype(result)

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
