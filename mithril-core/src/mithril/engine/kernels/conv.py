"""Kernels of convolution and max pooling.

All go through *taps*: for every element of the window, the slice of the input it touches and the
slice of the results it counts for. Padding is thus never stored. A convolution gathers its taps
into columns and multiplies matrices; a gradient does the same backwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops import conv as ops
from mithril.ops.windows import Padding
from mithril.types import Shape, TensorType

Index = tuple[slice, ...]
ALL = (slice(None), slice(None))


@kernel(ops.Convolution)
def convolution(op: ops.Convolution, types: Types, xp: ModuleType) -> Run:
    """Gather columns [batch, group, channels x window, positions] and multiply by the weight."""
    x_type, w_type = types
    (result,) = op.infer(types)
    dtype, groups = accumulator(result.dtype), op.groups
    gather = _gather(op, x_type, w_type.shape[2:], result.shape[2:], xp)
    rows, positions = math.prod(w_type.shape[1:]), math.prod(result.shape[2:])
    w_shape = (groups, w_type.shape[0] // groups, rows)

    def run(x: Any, w: Any) -> Any:
        columns = gather(x).reshape(x.shape[0], groups, rows, positions)
        y = xp.matmul(xp.asarray(w, dtype=dtype).reshape(w_shape), columns)
        return xp.asarray(y, dtype=result.dtype.numpy).reshape(result.shape)

    return run


@kernel(ops.ConvolutionInputGradient)
def input_gradient(op: ops.ConvolutionInputGradient, types: Types, xp: ModuleType) -> Run:
    """Multiply by the transposed weight and add the columns up where they came from."""
    dy_type, w_type = types
    (result,) = op.infer(types)
    dtype, groups, batch = accumulator(result.dtype), op.groups, dy_type.shape[0]
    window, out = w_type.shape[2:], dy_type.shape[2:]
    taps = list(taps_of(op.size, out, window, op.stride, op.padding, op.dilation))
    w_shape = (groups, w_type.shape[0] // groups, math.prod(w_type.shape[1:]))
    dy_shape = (batch, groups, w_shape[1], math.prod(out))
    column_shape = (batch, result.shape[1], *window, *out)

    def run(dy: Any, w: Any) -> Any:
        weight = xp.asarray(w, dtype=dtype).reshape(w_shape).transpose(0, 2, 1)
        columns = xp.matmul(weight, xp.asarray(dy, dtype=dtype).reshape(dy_shape))
        columns = columns.reshape(column_shape)
        dx = xp.zeros(result.shape, dtype=dtype)
        for at, read, written in taps:
            dx[(*ALL, *read)] += columns[(*ALL, *at, *written)]
        return xp.asarray(dx, dtype=result.dtype.numpy)

    return run


@kernel(ops.ConvolutionWeightGradient)
def weight_gradient(op: ops.ConvolutionWeightGradient, types: Types, xp: ModuleType) -> Run:
    """Multiply the result's gradient by the columns, summing over batch and positions at once."""
    x_type, dy_type = types
    (result,) = op.infer(types)
    dtype, groups, batch = accumulator(result.dtype), op.groups, x_type.shape[0]
    gather = _gather(op, x_type, op.size, dy_type.shape[2:], xp)
    rows, out = math.prod(result.shape[1:]), result.shape[0] // groups
    positions = math.prod(dy_type.shape[2:])

    def run(x: Any, dy: Any) -> Any:
        columns = gather(x).reshape(batch, groups, rows, positions).transpose(1, 0, 3, 2)
        columns = columns.reshape(groups, batch * positions, rows)
        dy = xp.asarray(dy, dtype=dtype).reshape(batch, groups, out, positions)
        dy = dy.transpose(1, 2, 0, 3).reshape(groups, out, batch * positions)
        dw = xp.matmul(dy, columns)
        return xp.asarray(dw, dtype=result.dtype.numpy).reshape(result.shape)

    return run


def _gather(
    op: ops.Convolving, x_type: TensorType, window: Shape, out: Shape, xp: ModuleType
) -> Run:
    """Return the function from an input to its columns [batch, channels, *window, *out]."""
    dtype = accumulator(x_type.dtype)
    taps = list(taps_of(x_type.shape[2:], out, window, op.stride, op.padding, op.dilation))
    shape = (*x_type.shape[:2], *window, *out)
    if math.prod(window) == 1 and x_type.shape[2:] == out and not any(map(any, op.padding)):
        return lambda x: xp.asarray(x, dtype=dtype).reshape(shape)  # 1 x 1: the input itself
    new = xp.zeros if any(map(any, op.padding)) else xp.empty

    def run(x: Any) -> Any:
        columns = new(shape, dtype=dtype)
        for at, read, written in taps:
            columns[(*ALL, *at, *written)] = x[(*ALL, *read)]
        return columns

    return run


def taps_of(
    size: Shape, out: Shape, window: Shape, stride: Shape, padding: Padding, dilation: Shape
) -> Iterator[tuple[tuple[int, ...], Index, Index]]:
    """Yield (element of the window, slice of the input, slice of the results), row-major."""
    per_dimension = [
        [_tap(k * d - before, *rest) for k in range(w)]
        for w, d, (before, _), *rest in zip(
            window, dilation, padding, size, out, stride, strict=True
        )
    ]
    for at in itertools.product(*map(range, window)):
        chosen = [taps[k] for taps, k in zip(per_dimension, at, strict=True)]
        if all(chosen):
            yield at, tuple(c[0] for c in chosen if c), tuple(c[1] for c in chosen if c)


def _tap(start: int, size: int, out: int, stride: int) -> tuple[slice, slice] | None:
    """Return which inputs `start + stride * position` exist, and for which positions."""
    first = max(0, -(start // stride))  # smallest position whose input is not before the array
    last = min(out - 1, (size - 1 - start) // stride)
    if first > last:
        return None
    begin = start + stride * first
    return slice(begin, start + stride * last + 1, stride), slice(first, last + 1)
