"""Shared kernels of convolution and pooling, by *taps*: an element of the window for all windows.

A tap reads a strided slice of the padded input; what goes back from it is spread out in the same
way and added up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import numpy as np

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.shape import spread
from mithril.engine.standard.table import kernel
from mithril.ops.conv import Padding
from mithril.ops.pool import MeanPooling, Pooling, window_sizes
from mithril.types import DType, Shape, TensorType

FIRST = 2
"""The first of the dimensions that windows slide along, after batch and channels."""


class Windows:
    """How windows lie in an input.

    Args:
        size: of the input, along the dimensions that windows slide along.
        out: how many windows there are along each.
        window: sizes of a window.
        stride: how far the next window is.
        padding: how much is before and after the input.
        dilation: how far the next element of a window is.
    """

    def __init__(
        self,
        size: Shape,
        out: Shape,
        window: Shape,
        stride: Shape,
        padding: Padding,
        dilation: Shape,
    ) -> None:
        self.size, self.out, self.window, self.stride = size, out, window, stride
        self.before = tuple(before for before, _ in padding)
        self.dilation = dilation
        self.padded = tuple(
            max(n + before, (w - 1) * d + s * (count - 1) + 1)
            for n, before, w, d, s, count in zip(
                size, self.before, window, dilation, stride, out, strict=True
            )
        )

    def __iter__(self) -> Iterator[Shape]:
        """Yield where each element of the window begins in the padded input, row-major."""
        for at in itertools.product(*map(range, self.window)):
            yield tuple(k * d for k, d in zip(at, self.dilation, strict=True))

    def pad(self, x: Any, xp: ArrayNamespace) -> Any:
        """Return the input with zeros around it."""
        for axis, (before, size) in enumerate(zip(self.before, self.padded, strict=True)):
            x = spread(x, FIRST + axis, before, 1, size, xp)
        return x

    def read(self, padded: Any, start: Shape) -> Any:
        """Return what a tap reads of the padded input, an element for each window."""
        steps = zip(start, self.stride, self.out, strict=True)
        return padded[(..., *(slice(a, a + s * (n - 1) + 1, s) for a, s, n in steps))]

    def write(self, y: Any, start: Shape, xp: ArrayNamespace) -> Any:
        """Return zeros like the padded input with what a tap gives back."""
        for axis, (a, s, size) in enumerate(zip(start, self.stride, self.padded, strict=True)):
            y = spread(y, FIRST + axis, a, s, size, xp)
        return y

    def trim(self, padded: Any) -> Any:
        """Return what is not padding."""
        cuts = zip(self.before, self.size, strict=True)
        return padded[(..., *(slice(before, before + n) for before, n in cuts))]


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


def _windows_of_pool(op: Pooling, x: TensorType, y: TensorType) -> Windows:
    dense = (1,) * len(op.window)
    return Windows(x.shape[2:], y.shape[2:], op.window, op.stride, op.padding, dense)


@kernel(ops.MaxPool)
def max_pool(op: ops.MaxPool, types: Types, xp: ArrayNamespace) -> Run:
    """The running maximum over the taps; padding counts as the lowest number there is."""
    (result,) = op.infer(types)
    windows = _windows_of_pool(op, types[0], result)
    lowest = xp.asarray(_lowest(result.dtype), dtype=dtype_in(xp, result.dtype))
    inside = _find_inside(windows, xp)

    def run(x: Any) -> Any:
        padded = windows.pad(x, xp)
        padded = xp.where(inside, padded, lowest)
        return reduce(xp.maximum, (windows.read(padded, at) for at in windows))

    return run


@kernel(ops.MaxPoolGradient)
def max_pool_gradient(op: ops.MaxPoolGradient, types: Types, xp: ArrayNamespace) -> Run:
    """Hand each gradient to the first tap that equals the maximum."""
    x_type, y_type = types[:2]
    windows = _windows_of_pool(op, x_type, y_type)
    inside = _find_inside(windows, xp)
    dtype = dtype_in(xp, x_type.dtype)

    def run(x: Any, y: Any, dy: Any) -> Any:
        padded = windows.pad(x, xp)
        total = xp.zeros((*x_type.shape[:2], *windows.padded), dtype=dtype)
        is_open = xp.equal(xp.zeros_like(y), xp.zeros_like(y))
        for at in windows:
            wins = is_open & windows.read(inside, at) & (windows.read(padded, at) == y)
            total = total + windows.write(xp.where(wins, dy, xp.zeros_like(dy)), at, xp)
            is_open = is_open & ~wins
        return windows.trim(total)

    return run


@kernel(ops.AvgPool)
def avg_pool(op: ops.AvgPool, types: Types, xp: ArrayNamespace) -> Run:
    """The sum over the taps, divided by how many there are."""
    (result,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (result.dtype, widen(result.dtype)))
    windows, share = _windows_of_pool(op, types[0], result), _share(op, types[0], result, xp)

    def run(x: Any) -> Any:
        padded = windows.pad(xp.astype(x, wide, copy=False), xp)
        total = reduce(xp.add, (windows.read(padded, at) for at in windows))
        return xp.astype(total * share, dtype, copy=False)

    return run


@kernel(ops.AvgPoolGradient)
def avg_pool_gradient(op: ops.AvgPoolGradient, types: Types, xp: ArrayNamespace) -> Run:
    """Hand every tap its share of the result's gradient."""
    (x_type,) = op.infer(types)
    dtype, wide = (dtype_in(xp, chosen) for chosen in (x_type.dtype, widen(x_type.dtype)))
    windows, share = _windows_of_pool(op, x_type, types[0]), _share(op, x_type, types[0], xp)

    def run(dy: Any) -> Any:
        part = xp.astype(dy, wide, copy=False) * share
        total = xp.zeros((*x_type.shape[:2], *windows.padded), dtype=wide)
        for at in windows:
            total = total + windows.write(part, at, xp)
        return xp.astype(windows.trim(total), dtype, copy=False)

    return run


def _share(op: MeanPooling, x: TensorType, y: TensorType, xp: ArrayNamespace) -> Any:
    """Return one over the number of elements of each window."""
    counts = [np.asarray(sizes, float) for sizes in window_sizes(op, x, y)]
    shares: Sequence[Any] = (1.0 / reduce(np.multiply.outer, counts)).tolist()
    return xp.asarray(shares, dtype=dtype_in(xp, widen(x.dtype)))


def _find_inside(windows: Windows, xp: ArrayNamespace) -> Any:
    """Return which elements of the padded input are of the input, [1, 1, *padded]."""
    at = [
        [before <= i < before + n for i in range(padded)]
        for before, n, padded in zip(windows.before, windows.size, windows.padded, strict=True)
    ]
    inside = reduce(np.logical_and.outer, [np.asarray(row, bool) for row in at])
    whole = xp.asarray(inside.tolist(), dtype=dtype_in(xp, DType.bool_))
    return xp.reshape(whole, (1, 1, *windows.padded))


def _lowest(dtype: DType) -> float | int:
    """Return what every number of a dtype is at least."""
    if dtype.is_float:
        return -math.inf
    return 0 if "u" in dtype else -(2 ** (8 * dtype.itemsize - 1))
