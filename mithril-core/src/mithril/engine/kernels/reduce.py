"""Kernels of the reductions, and running sums."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import arg_reduce, running
from mithril.ops import reduce as ops
from mithril.types import TensorType

# Up to this many terms a product with ones is used: BLAS adds several times faster than a
# reduction does, but adds one after another, and its rounding error grows with their number.
_MATMUL_TERMS = 16384


@kernel(ops.Sum)
def sum_(op: ops.Sum, types: Types, xp: ModuleType) -> Run:
    """A sum that accumulates 16-bit floats in float32."""
    axes, keepdims = op.axes, op.keepdims
    (result,) = op.infer(types)
    dtype = result.dtype.numpy
    if result.dtype.is_float and result.dtype.itemsize == 2:
        return lambda x: xp.asarray(
            xp.sum(x, axis=axes, keepdims=keepdims, dtype=np.float32), dtype=dtype
        )
    product = _product_with_ones(axes, types[0], result) if result.dtype.is_float else None
    return product or (lambda x: xp.sum(x, axis=axes, keepdims=keepdims, dtype=dtype))


def _product_with_ones(axes: tuple[int, ...], x: TensorType, result: TensorType) -> Run | None:
    """Return a sum over leading or trailing dimensions as a matrix product, where that pays."""
    is_leading, terms = find_ends(axes, x), math.prod(x.shape[i] for i in axes)
    if is_leading is None:
        return None
    ones, shape = np.ones(terms, dtype=x.dtype.numpy), result.shape
    if x.rank == 2 and result.rank == 1:  # a small sum would feel each view
        return ones.dot if is_leading else (lambda x: x.dot(ones))
    if is_leading:
        return lambda x: ones.dot(x.reshape(terms, -1)).reshape(shape)
    return lambda x: x.reshape(-1, terms).dot(ones).reshape(shape)


def find_ends(axes: tuple[int, ...], x: TensorType) -> bool | None:
    """Return whether a sum is over leading dimensions; None where a product does not pay."""
    terms = math.prod(x.shape[i] for i in axes)
    if not 1 < terms <= _MATMUL_TERMS or x.rank == len(axes):
        return None
    if axes == tuple(range(x.rank - len(axes), x.rank)):
        return False
    return True if axes == tuple(range(len(axes))) else None


@kernel(arg_reduce.Argmax, arg_reduce.Argmin)
def arg_extremum(op: arg_reduce.ArgExtremum, types: Types, xp: ModuleType) -> Run:
    """The index of the first extreme element."""
    find, axis = getattr(xp, op.name), op.axis
    return lambda x: xp.asarray(find(x, axis=axis), dtype=np.int32)


@kernel(running.Prod)
def prod(op: running.Prod, types: Types, xp: ModuleType) -> Run:
    """A product; of 16-bit floats in float32."""
    (result,) = op.infer(types)
    dtype, wide = result.dtype.numpy, accumulator(result.dtype)
    return lambda x: xp.asarray(
        xp.prod(xp.asarray(x, dtype=wide), axis=op.axes, keepdims=op.keepdims, dtype=wide),
        dtype=dtype,
    )


@kernel(running.Cumsum, running.Cumprod)
def cumulative(op: running.Cumsum | running.Cumprod, types: Types, xp: ModuleType) -> Run:
    """A running sum or product; of 16-bit floats in float32."""
    accumulate = getattr(xp, op.name)
    (result,) = op.infer(types)
    dtype, wide = result.dtype.numpy, accumulator(result.dtype)

    def run(x: Any) -> Any:
        x = xp.flip(x, axis=op.axis) if op.reverse else x
        total = accumulate(x, axis=op.axis, dtype=wide)
        return xp.asarray(xp.flip(total, axis=op.axis) if op.reverse else total, dtype=dtype)

    return run
