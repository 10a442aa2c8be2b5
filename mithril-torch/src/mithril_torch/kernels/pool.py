"""Pooling: PyTorch's kernels where they fit, else windows of a padded input."""

from __future__ import annotations

import math

from mithril.spi import DType, Shape, Types, ops

from mithril_torch.kernels.conv import DIMENSIONS
from mithril_torch.kernels.empty import zero_without_elements
from mithril_torch.kernels.expression import number
from mithril_torch.kernels.table import kernel


@kernel(ops.MaxPool)
@zero_without_elements
def max_pool(op: ops.MaxPool, types: Types) -> str:
    """The largest element of each window."""
    if _fits(op, types):
        return f"max_pool({{0}}, {_pooling(op)})"
    lowest = number(_lowest(types[0].dtype))
    return f"max_windows({{0}}, {_format_window(op)}, {lowest})"


@kernel(ops.MaxPoolGradient)
@zero_without_elements
def max_pool_gradient(op: ops.MaxPoolGradient, types: Types) -> str:
    """Each gradient handed to the first element that equals the maximum."""
    if _fits(op, types):
        return f"max_pool_gradient({{0}}, {{2}}, {_pooling(op)})"
    return f"max_windows_gradient({{0}}, {{1}}, {{2}}, {_format_window(op)})"


@kernel(ops.AvgPool)
@zero_without_elements
def avg_pool(op: ops.AvgPool, types: Types) -> str:
    """The mean of each window."""
    if _fits(op, types):
        return f"avg_pool({{0}}, {_pooling(op)}, {op.count_padding})"
    return f"mean_windows({{0}}, {_format_window(op)}, {op.count_padding})"


@kernel(ops.AvgPoolGradient)
@zero_without_elements
def avg_pool_gradient(op: ops.AvgPoolGradient, types: Types) -> str:
    """Each gradient handed to the elements of its window in equal parts."""
    size = list(op.size)
    if _fits(op, types):
        return f"avg_pool_gradient({{0}}, {size}, {_pooling(op)}, {op.count_padding})"
    return f"mean_windows_gradient({{0}}, {size}, {_format_window(op)}, {op.count_padding})"


def _fits(op: ops.Pooling, types: Types) -> bool:
    """Whether PyTorch has a kernel: of floats, and padded evenly by at most half a window."""
    even = all(before == after for before, after in op.padding)
    small = all(2 * pad <= size for (pad, _), size in zip(op.padding, op.window, strict=True))
    return types[0].dtype.is_float and even and small and len(op.window) <= DIMENSIONS


def _pooling(op: ops.Pooling) -> str:
    """Return window, stride and padding for a kernel; one dimension is the last of two."""
    one: Shape = (1,) if len(op.window) == 1 else ()
    pads = [0] * len(one) + [before for before, _ in op.padding]
    return f"{[*one, *op.window]}, {[*one, *op.stride]}, {pads}"


def _format_window(op: ops.Pooling) -> str:
    return f"{list(op.window)}, {list(op.stride)}, {list(op.padding)}"


def _lowest(of: DType) -> float:
    """Return what every number of a dtype is at least."""
    if of.is_float:
        return -math.inf
    return 0 if "u" in of else -(2 ** (8 * of.itemsize - 1))
