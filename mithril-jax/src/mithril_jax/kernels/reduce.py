"""Kernels of the reductions; 16-bit floats are added and multiplied up in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from mithril.spi import KernelRun, Types, accumulator, ops

from mithril_jax.kernels.table import kernel

_REDUCE: dict[type[Any], KernelRun] = {
    ops.Sum: lax.reduce_sum, ops.Prod: lax.reduce_prod, ops.Max: lax.reduce_max, ops.Min:
    lax.reduce_min, ops.AnyTrue: lax.reduce_or, ops.AllTrue: lax.reduce_and,
}  # fmt: skip


@kernel(*_REDUCE)
def reduction(op: ops.Reduction, types: Types) -> KernelRun:
    """One of the reductions over some dimensions."""
    (result,) = op.infer(types)
    reduce, dtype = _REDUCE[type(op)], result.dtype.numpy
    accumulate = accumulator(result.dtype) if isinstance(op, ops.Sum | ops.Prod) else dtype

    def run(x: Any) -> Any:
        y = reduce(lax.convert_element_type(x, accumulate), op.axes)
        return lax.reshape(lax.convert_element_type(y, dtype), result.shape)

    return run


@kernel(ops.Argmax, ops.Argmin)
def arg_extremum(op: ops.ArgExtremum, types: Types) -> KernelRun:
    """The index of the first extreme element."""
    find = lax.argmax if isinstance(op, ops.Argmax) else lax.argmin
    return lambda x: find(x, op.axis, np.int32)


@kernel(ops.Cumsum, ops.Cumprod)
def cumulative(op: ops.Cumsum | ops.Cumprod, types: Types) -> KernelRun:
    """A running sum or product."""
    function = lax.cumsum if isinstance(op, ops.Cumsum) else lax.cumprod
    (result,) = op.infer(types)
    dtype, accumulate = result.dtype.numpy, accumulator(result.dtype)

    def run(x: Any) -> Any:
        total = function(lax.convert_element_type(x, accumulate), op.axis, reverse=op.reverse)
        return lax.convert_element_type(total, dtype)

    return run
