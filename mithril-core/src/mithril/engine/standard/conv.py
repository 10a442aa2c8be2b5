"""Shared kernels of convolution: columns are gathered and multiplied, or the other way round."""

from __future__ import annotations

import math
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel
from mithril.engine.standard.windows import Windows
from mithril.types import Shape


def _windows_of_convolution(op: Any, size: Shape, out: Shape, window: Shape) -> Windows:
    return Windows(size, out, window, op.stride, op.padding, op.dilation)


def _gather(windows: Windows, x: Any, xp: ArrayNamespace) -> Any:
    """Return the columns [batch, channels, elements of the window, positions]."""
    padded = windows.pad(x, xp)
    positions = math.prod(windows.out)
    taps = [xp.reshape(windows.read(padded, at), (*x.shape[:2], positions)) for at in windows]
    return xp.stack(taps, axis=2)


@kernel(ops.Convolution)
def convolution(op: ops.Convolution, types: Types, xp: ArrayNamespace) -> Run:
    """Gather columns, and multiply them by the weight, group by group."""
    x_type, w_type = types
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    windows = _windows_of_convolution(op, x_type.shape[2:], result.shape[2:], w_type.shape[2:])
    rows, positions = math.prod(w_type.shape[1:]), math.prod(result.shape[2:])
    w_shape = (op.groups, w_type.shape[0] // op.groups, rows)

    def run(x: Any, w: Any) -> Any:
        columns = _gather(windows, xp.astype(x, wide, copy=False), xp)
        columns = xp.reshape(columns, (x_type.shape[0], op.groups, rows, positions))
        y = xp.matmul(xp.reshape(xp.astype(w, wide, copy=False), w_shape), columns)
        return xp.astype(xp.reshape(y, result.shape), dtype, copy=False)

    return run


@kernel(ops.ConvolutionInputGradient)
def input_gradient(op: ops.ConvolutionInputGradient, types: Types, xp: ArrayNamespace) -> Run:
    """Multiply by the transposed weight, and add the taps up where they came from."""
    dy_type, w_type = types
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    windows = _windows_of_convolution(op, op.size, dy_type.shape[2:], w_type.shape[2:])
    rows, out = math.prod(w_type.shape[1:]), dy_type.shape[2:]
    w_shape = (op.groups, w_type.shape[0] // op.groups, rows)
    dy_shape = (dy_type.shape[0], op.groups, w_shape[1], math.prod(out))

    def run(dy: Any, w: Any) -> Any:
        weight = xp.permute_dims(xp.reshape(xp.astype(w, wide, copy=False), w_shape), (0, 2, 1))
        columns = xp.matmul(weight, xp.reshape(xp.astype(dy, wide, copy=False), dy_shape))
        taps = xp.reshape(columns, (*result.shape[:2], math.prod(windows.window), *out))
        total = xp.zeros((*result.shape[:2], *windows.padded), dtype=wide)
        for number, at in enumerate(windows):
            total = total + windows.write(taps[:, :, number, ...], at, xp)
        return xp.astype(windows.trim(total), dtype, copy=False)

    return run


@kernel(ops.ConvolutionWeightGradient)
def weight_gradient(op: ops.ConvolutionWeightGradient, types: Types, xp: ArrayNamespace) -> Run:
    """Multiply the result's gradient by the columns, summing over batch and positions at once."""
    x_type, dy_type = types
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    windows = _windows_of_convolution(op, x_type.shape[2:], dy_type.shape[2:], op.size)
    batch, rows = x_type.shape[0], math.prod(result.shape[1:])
    out, positions = result.shape[0] // op.groups, math.prod(dy_type.shape[2:])

    def run(x: Any, dy: Any) -> Any:
        columns = _gather(windows, xp.astype(x, wide, copy=False), xp)
        columns = xp.reshape(columns, (batch, op.groups, rows, positions))
        columns = xp.reshape(
            xp.permute_dims(columns, (1, 0, 3, 2)), (op.groups, batch * positions, rows)
        )
        dy = xp.reshape(xp.astype(dy, wide, copy=False), (batch, op.groups, out, positions))
        dy = xp.reshape(xp.permute_dims(dy, (1, 2, 0, 3)), (op.groups, out, batch * positions))
        return xp.astype(xp.reshape(xp.matmul(dy, columns), result.shape), dtype, copy=False)

    return run
