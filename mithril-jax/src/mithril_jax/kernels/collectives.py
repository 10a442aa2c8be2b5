"""Kernels of the collectives, and of the index of a device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from mithril.spi import KernelRun, TensorType, Types, ops

from mithril_jax.kernels.table import kernel

_REDUCE: dict[str, KernelRun] = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


@kernel(ops.AllReduce)
def all_reduce(op: ops.AllReduce, types: Types) -> KernelRun:
    """The reduction over a group, of one operand or of a bucket.

    XLA drops NaN from a maximum between devices on CPU: floats travel as integers in their order.
    A sum of booleans is whether one of them is true; XLA would count them.
    """
    if op.reduction == "sum" and types[0].dtype == "bool":
        op = replace(op, reduction="max")
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
def all_gather(op: ops.AllGather, types: Types) -> KernelRun:
    """The parts of a group one after another; those of several operands in one array."""
    if len(types) > 1:
        return _gather_flat(op, types)
    if empty := _empty(op, types):
        return empty
    return lambda x: lax.all_gather(x, op.axes, axis=op.dimension, tiled=True)


@kernel(ops.ReduceScatter)
def reduce_scatter(op: ops.ReduceScatter, types: Types) -> KernelRun:
    """A part of the sum over a group; of a maximum or minimum by an all_reduce and a slice.

    Several operands travel in one array.
    """
    if len(types) > 1:
        return _scatter_flat(op, types)
    if empty := _empty(op, types):
        return empty
    if op.reduction == "sum" and types[0].dtype != "bool":
        return lambda x: lax.psum_scatter(x, op.axes, scatter_dimension=op.dimension, tiled=True)
    size = types[0].shape[op.dimension] // op.count
    reduce = all_reduce(ops.AllReduce(op.axes, op.reduction), types)

    def run(x: Any) -> Any:
        start = lax.axis_index(op.axes) * size
        (whole,) = reduce(x)
        return lax.dynamic_slice_in_dim(whole, start, size, op.dimension)

    return run


def _gather_flat(op: ops.AllGather, types: Types) -> KernelRun:
    """Return the all_gather of several operands in one array, row by row for the devices."""
    sizes, results = [type.size for type in types], op.infer(types)

    def run(*operands: Any) -> Any:
        flat = lax.concatenate([lax.reshape(x, (x.size,)) for x in operands], 0)
        rows = _cut_rows(lax.all_gather(flat, op.axes), sizes)
        parts = (
            jnp.moveaxis(lax.reshape(row, (op.count, *type.shape)), 0, op.dimension)
            for row, type in zip(rows, types, strict=True)
        )
        return tuple(
            lax.reshape(part, made.shape) for part, made in zip(parts, results, strict=True)
        )

    return run


def _scatter_flat(op: ops.ReduceScatter, types: Types) -> KernelRun:
    """Return the reduce_scatter of several operands in one array, row by row for the devices."""
    results = op.infer(types)
    sizes = [made.size for made in results]
    flat = TensorType((op.count, sum(sizes)), types[0].dtype)
    scatter = reduce_scatter(replace(op, dimension=0), [flat])

    def run(*operands: Any) -> Any:
        rows = [_split_parts(x, op.dimension, op.count) for x in operands]
        mine = scatter(lax.concatenate(rows, 1))
        return tuple(
            lax.reshape(part, made.shape)
            for part, made in zip(_cut_rows(mine, sizes), results, strict=True)
        )

    return run


def _split_parts(x: Any, dimension: int, count: int) -> Any:
    """Return the part of each device as a row."""
    shape = (*x.shape[:dimension], count, x.shape[dimension] // count, *x.shape[dimension + 1 :])
    parts = jnp.moveaxis(lax.reshape(x, shape), dimension, 0)
    return lax.reshape(parts, (count, math.prod(parts.shape[1:])))


def _shape_parts(shape: tuple[int, ...], dimension: int, count: int) -> tuple[int, ...]:
    """Return the shape of the parts of all devices, one after another."""
    part = shape[dimension] // count
    return (count, *shape[:dimension], part, *shape[dimension + 1 :])


def _cut_rows(rows: Any, sizes: list[int]) -> Iterator[Any]:
    """Yield so many columns of some rows, one after another."""
    for start, stop in pairwise(accumulate(sizes, initial=0)):
        yield lax.slice_in_dim(rows, start, stop, axis=1)


@kernel(ops.AllToAll)
def all_to_all(op: ops.AllToAll, types: Types) -> KernelRun:
    """Pieces along one dimension sent to their device, and joined along another one.

    XLA looks through the padding of what it cuts, and then finds pieces in layouts that differ,
    which it refuses; it does not look through a barrier. Several operands are one array.
    """
    if len(types) > 1:
        return _exchange_flat(op, types)
    if empty := _empty(op, types):
        return empty
    return lambda x: lax.all_to_all(
        lax.optimization_barrier(x), op.axes, op.split, op.concat, tiled=True
    )


def _exchange_flat(op: ops.AllToAll, types: Types) -> KernelRun:
    """Return the all_to_all of several operands in one array, row by row for the devices."""
    shapes = [_shape_parts(type.shape, op.split, op.count) for type in types]
    sizes, results = [math.prod(shape[1:]) for shape in shapes], op.infer(types)

    def run(*operands: Any) -> Any:
        rows = [_split_parts(x, op.split, op.count) for x in operands]
        flat = lax.optimization_barrier(lax.concatenate(rows, 1))
        found = _cut_rows(lax.all_to_all(flat, op.axes, 0, 0, tiled=True), sizes)
        parts = (
            jnp.moveaxis(lax.reshape(row, shape), 0, op.concat)
            for row, shape in zip(found, shapes, strict=True)
        )
        return tuple(
            lax.reshape(part, made.shape) for part, made in zip(parts, results, strict=True)
        )

    return run


@kernel(ops.Permute)
def permute(op: ops.Permute, types: Types) -> KernelRun:
    """The value sent on, or several of them in one array; who gets none has zeros."""
    if len(types) == 1:
        return lambda x: lax.ppermute(x, op.axes, _in_mesh_order(op))

    def run(*operands: Any) -> Any:
        flat = lax.concatenate([lax.reshape(x, (1, x.size)) for x in operands], 1)
        rows = _cut_rows(lax.ppermute(flat, op.axes, _in_mesh_order(op)), [t.size for t in types])
        return tuple(lax.reshape(row, x.shape) for row, x in zip(rows, operands, strict=True))

    return run


def _in_mesh_order(op: ops.Permute) -> list[tuple[int, int]]:
    """Return the pairs as `ppermute` numbers a group: by the mesh's order of axes, not the op's."""
    names = jax.sharding.get_abstract_mesh().axis_names
    grid = np.arange(lax.axis_size(op.axes)).reshape([lax.axis_size(axis) for axis in op.axes])
    order = sorted(range(grid.ndim), key=lambda i: names.index(op.axes[i]))
    place = np.argsort(grid.transpose(order).ravel())
    return [(int(place[source]), int(place[target])) for source, target in op.pairs]


def _empty(op: ops.Collective, types: Types) -> KernelRun | None:
    """Return the function that makes a result without elements, which XLA refuses to move."""
    (result,) = op.infer(types)
    if types[0].size:
        return None
    return lambda x: jnp.zeros(result.shape, result.dtype.numpy)


@kernel(ops.AxisIndex)
def axis_index(op: ops.AxisIndex, types: Types) -> KernelRun:
    """The device's row-major index over some axes."""
    return lambda: lax.axis_index(op.axes)
