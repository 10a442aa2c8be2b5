"""Shared kernels of the reductions, and running sums and products."""

from __future__ import annotations

from functools import partial
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel
from mithril.types import DType


@kernel(ops.Sum)
def sum_(op: ops.Sum, types: Types, xp: ArrayNamespace) -> Run:
    """A sum; of 16-bit floats in float32."""
    return _add_up(xp.sum, op, types, xp)


@kernel(ops.Prod)
def prod(op: ops.Prod, types: Types, xp: ArrayNamespace) -> Run:
    """A product; of 16-bit floats in float32."""
    return _add_up(xp.prod, op, types, xp)


def _add_up(reduce: Run, op: ops.Sum | ops.Prod, types: Types, xp: ArrayNamespace) -> Run:
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))

    def run(x: Any) -> Any:
        x = xp.astype(x, wide, copy=False)
        found = reduce(x, axis=op.axes, keepdims=op.keepdims, dtype=wide)
        return xp.astype(found, dtype, copy=False)

    return run


def along_axes(function: str, op: ops.Reduction, types: Types, xp: ArrayNamespace) -> Run:
    """The namespace's own."""
    reduce, axes, keepdims = getattr(xp, function), op.axes, op.keepdims
    return lambda x: reduce(x, axis=axes, keepdims=keepdims)


for op_class, name in {
    ops.Max: "max", ops.Min: "min", ops.AnyTrue: "any", ops.AllTrue: "all"
}.items():  # fmt: skip
    kernel(op_class)(partial(along_axes, name))


def arg_extremum(function: str, op: ops.ArgExtremum, types: Types, xp: ArrayNamespace) -> Run:
    """The index of the first extreme element."""
    find, axis = getattr(xp, function), op.axis
    int32 = dtype_in(xp, DType.int32)
    return lambda x: xp.astype(find(x, axis=axis), int32, copy=False)


kernel(ops.Argmax)(partial(arg_extremum, "argmax"))
kernel(ops.Argmin)(partial(arg_extremum, "argmin"))


@kernel(ops.Cumsum, ops.Cumprod)
def cumulative(op: ops.Cumsum | ops.Cumprod, types: Types, xp: ArrayNamespace) -> Run:
    """A running sum or product, by doubling; of 16-bit floats in float32.

    Step k combines each element with the one 2 ** k before it (Hillis and Steele, 1986): the
    standard's own running product is younger than what the other kernels need.
    """
    combine = xp.add if op.name == "cumsum" else xp.multiply
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    before, size = (slice(None),) * op.axis, result.shape[op.axis]

    def run(x: Any) -> Any:
        x = xp.astype(x, wide, copy=False)
        x = xp.flip(x, axis=op.axis) if op.reverse else x
        step = 1
        while step < size:
            ahead, behind = (
                x[(*before, slice(step, size), ...)],
                x[(*before, slice(0, size - step), ...)],
            )
            kept = x[(*before, slice(0, step), ...)]
            x = xp.concat([kept, combine(ahead, behind)], axis=op.axis)
            step *= 2
        x = xp.flip(x, axis=op.axis) if op.reverse else x
        return xp.astype(x, dtype, copy=False)

    return run
