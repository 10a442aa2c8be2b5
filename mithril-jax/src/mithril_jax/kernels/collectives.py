"""Kernels of the collectives, and of the index of a device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mithril.engine.kernels.registry import Run, Types
from mithril.ops import collective as ops

from mithril_jax.kernels.table import kernel

_REDUCE: dict[str, Run] = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


@kernel(ops.AllReduce)
def all_reduce(op: ops.AllReduce, types: Types) -> Run:
    """The reduction over a group, of one operand or of a bucket.

    XLA drops NaN from a maximum between devices on CPU: floats travel as integers in their order.
    """
    reduce = _REDUCE[op.reduction]
    if op.reduction == "sum":
        return lambda *operands: tuple(reduce(operands, op.axes))

    def run(*operands: Any) -> Any:
        found = reduce([_to_ordered_bits(x, op.reduction) for x in operands], op.axes)
        return tuple(
            _from_ordered_bits(key, x.dtype) for key, x in zip(found, operands, strict=True)
        )

    return run


def _to_ordered_bits(x: Any, reduction: str) -> Any:
    """Return integers in the order of floats; NaN is the largest for `max`, else the smallest."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    dtype = np.dtype(f"int{8 * x.dtype.itemsize}")
    ends = np.iinfo(dtype)
    nan = np.asarray(ends.max if reduction == "max" else ends.min, dtype)
    return jnp.where(jnp.isnan(x), nan, _flip_negatives(lax.bitcast_convert_type(x, dtype)))


def _from_ordered_bits(key: Any, dtype: Any) -> Any:
    """Return the floats that `_to_ordered_bits` made integers of."""
    return key if key.dtype == dtype else lax.bitcast_convert_type(_flip_negatives(key), dtype)


def _flip_negatives(bits: Any) -> Any:
    """Turn sign and magnitude into two's complement, or back."""
    return jnp.where(bits < 0, bits ^ np.asarray(np.iinfo(bits.dtype).max, bits.dtype), bits)


@kernel(ops.AllGather)
def all_gather(op: ops.AllGather, types: Types) -> Run:
    """The parts of a group one after another."""
    if empty := _empty(op, types):
        return empty
    return lambda x: lax.all_gather(x, op.axes, axis=op.dimension, tiled=True)


@kernel(ops.ReduceScatter)
def reduce_scatter(op: ops.ReduceScatter, types: Types) -> Run:
    """A part of the sum over a group; of a maximum or minimum by an all_reduce and a slice."""
    if empty := _empty(op, types):
        return empty
    if op.reduction == "sum":
        return lambda x: lax.psum_scatter(x, op.axes, scatter_dimension=op.dimension, tiled=True)
    size = types[0].shape[op.dimension] // op.count
    reduce = all_reduce(ops.AllReduce(op.axes, op.reduction), types)

    def run(x: Any) -> Any:
        start = lax.axis_index(op.axes) * size
        (whole,) = reduce(x)
        return lax.dynamic_slice_in_dim(whole, start, size, op.dimension)

    return run


@kernel(ops.AllToAll)
def all_to_all(op: ops.AllToAll, types: Types) -> Run:
    """Pieces along one dimension sent to their device, and joined along another one.

    XLA looks through the padding of what it cuts, and then finds pieces in layouts that differ,
    which it refuses; it does not look through a barrier.
    """
    if empty := _empty(op, types):
        return empty
    return lambda x: lax.all_to_all(
        lax.optimization_barrier(x), op.axes, op.split, op.concat, tiled=True
    )


@kernel(ops.Permute)
def permute(op: ops.Permute, types: Types) -> Run:
    """The value sent on; who gets none has zeros."""
    return lambda x: lax.ppermute(x, op.axes, _in_mesh_order(op))


def _in_mesh_order(op: ops.Permute) -> list[tuple[int, int]]:
    """Return the pairs as `ppermute` numbers a group: by the mesh's order of axes, not the op's."""
    names = jax.sharding.get_abstract_mesh().axis_names
    grid = np.arange(lax.axis_size(op.axes)).reshape([lax.axis_size(axis) for axis in op.axes])
    order = sorted(range(grid.ndim), key=lambda i: names.index(op.axes[i]))
    place = np.argsort(grid.transpose(order).ravel())
    return [(int(place[source]), int(place[target])) for source, target in op.pairs]


def _empty(op: ops.Collective, types: Types) -> Run | None:
    """Return the function that makes a result without elements, which XLA refuses to move."""
    (result,) = op.infer(types)
    if types[0].size:
        return None
    return lambda x: jnp.zeros(result.shape, result.dtype.numpy)


@kernel(ops.AxisIndex)
def axis_index(op: ops.AxisIndex, types: Types) -> Run:
    """The device's row-major index over some axes."""
    return lambda: lax.axis_index(op.axes)
