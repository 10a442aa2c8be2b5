"""Convolution and pooling that PyTorch has no kernel for, by way of windows of a padded input.

PyTorch has kernels for up to three spatial dimensions, paddings equal on both sides, and pooling of
floats. Here spatial dimensions may be any number; tensors are [batch, channels, *spatial], paddings
a pair for each spatial dimension.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten
Pairs = Sequence[tuple[int, int]]


def pad(x: torch.Tensor, padding: Pairs, value: float) -> torch.Tensor:
    """Return x with a number around it."""
    widths = [width for pair in reversed(padding) for width in pair]
    return aten.constant_pad_nd(x, widths, value) if any(widths) else x


def windows(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> torch.Tensor:
    """Return a view [batch, channels, *positions, *window] of a padded input."""
    for i, (size, step, gap) in enumerate(zip(window, stride, dilation, strict=True)):
        x = x.unfold(2 + i, gap * (size - 1) + 1, step)[..., ::gap]
    return x


def fold(
    parts: torch.Tensor, size: Sequence[int], stride: Sequence[int], padding: Pairs,
    dilation: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """Add up [batch, channels, *positions, *window] where they come from in an input."""
    whole = [n + before + after for n, (before, after) in zip(size, padding, strict=True)]
    window = parts.shape[2 + len(whole) :]
    x = parts.new_zeros((*parts.shape[:2], *whole))
    views = windows(x, window, stride, dilation)
    for at in itertools.product(*map(range, window)):
        tap: tuple[Any, ...] = (..., *at)
        views[tap].add_(parts[tap])
    for i, (n, (before, _)) in enumerate(zip(size, padding, strict=True)):
        x = x.narrow(2 + i, before, n)
    return x


def im2col(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int], padding: Pairs,
    dilation: Sequence[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    """Return [batch, groups, positions, channels of a group x window], in at least float32."""
    rank, b, c = len(window), x.shape[0], x.shape[1]
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    parts = windows(pad(x, padding, 0), window, stride, dilation)
    count = math.prod(parts.shape[2 : 2 + rank])
    parts = parts.movedim(1, 1 + rank).reshape(b, count, groups, c // groups * math.prod(window))
    return parts.transpose(1, 2)


def convolve_windows(
    x: torch.Tensor, w: torch.Tensor, stride: Sequence[int], padding: Pairs,
    dilation: Sequence[int], groups: int, out: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """Return a convolution over any number of spatial dimensions."""
    parts = im2col(x, w.shape[2:], stride, padding, dilation, groups)
    weight = w.to(parts.dtype).reshape(groups, w.shape[0] // groups, parts.shape[3])
    return torch.matmul(weight, parts.mT).reshape(x.shape[0], w.shape[0], *out).to(x.dtype)


def convolve_windows_input_gradient(
    dy: torch.Tensor, w: torch.Tensor, stride: Sequence[int], padding: Pairs,
    dilation: Sequence[int], groups: int, size: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of the input of `convolve_windows`, of spatial sizes `size`."""
    b, out, window, wide = (
        dy.shape[0],
        dy.shape[2:],
        w.shape[2:],
        torch.promote_types(dy.dtype, torch.float32),
    )
    given = dy.to(wide).reshape(b, groups, w.shape[0] // groups, math.prod(out))
    weight = w.to(wide).reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))
    parts = torch.matmul(given.mT, weight)
    parts = parts.reshape(b, groups, *out, w.shape[1], *window).movedim(2 + len(out), 2)
    return fold(parts.flatten(1, 2), size, stride, padding, dilation).to(dy.dtype)


def convolve_windows_weight_gradient(
    x: torch.Tensor, dy: torch.Tensor, stride: Sequence[int], padding: Pairs,
    dilation: Sequence[int], groups: int, window: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of the weight of `convolve_windows`, of window `window`."""
    parts = im2col(x, window, stride, padding, dilation, groups)
    o = dy.shape[1] // groups
    given = dy.to(parts.dtype).reshape(dy.shape[0], groups, o, math.prod(dy.shape[2:]))
    found = torch.matmul(given, parts).sum(0)
    return found.reshape(groups * o, x.shape[1] // groups, *window).to(x.dtype)


def max_windows(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int], padding: Pairs, lowest: float
) -> torch.Tensor:
    """Return the largest element of every window; `lowest` is what padding counts as."""
    # PyTorch compares no unsigned integers but bytes.
    wide = x.long() if x.dtype in (torch.uint16, torch.uint32) else x
    parts = windows(pad(wide, padding, lowest), window, stride, [1] * len(window))
    return parts.flatten(-len(window)).amax(-1).to(x.dtype)


def max_windows_gradient(
    x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor, window: Sequence[int],
    stride: Sequence[int], padding: Pairs,
) -> torch.Tensor:  # fmt: skip
    """Give each window's gradient to its first maximum; padding is none; sums are float32."""
    rank, ones = len(window), [1] * len(window)
    real = pad(torch.ones_like(x[:1, :1], dtype=torch.bool), padding, 0)
    wins = windows(pad(x, padding, 0), window, stride, ones) == y.view(*y.shape, *ones)
    wins = wins.logical_and(windows(real, window, stride, ones)).flatten(-rank)
    wins = wins.logical_and(wins.cumsum(-1) == 1).unflatten(-1, list(window))
    wide = dy.to(torch.promote_types(dy.dtype, torch.float32))
    parts = torch.where(wins, wide.view(*y.shape, *ones), 0)
    return fold(parts, x.shape[2:], stride, padding, ones).to(x.dtype)


def mean_windows(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int], padding: Pairs,
    count_padding: bool,
) -> torch.Tensor:  # fmt: skip
    """Return the mean of every window."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    parts = windows(pad(wide, padding, 0), window, stride, [1] * len(window))
    total = parts.flatten(-len(window)).sum(-1)
    shape = x.shape[2:]
    return total.div_(
        count_window_elements(wide, shape, window, stride, padding, count_padding)
    ).to(x.dtype)


def mean_windows_gradient(
    dy: torch.Tensor, size: Sequence[int], window: Sequence[int], stride: Sequence[int],
    padding: Pairs, count_padding: bool,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of the input of `mean_windows`, of spatial sizes `size`."""
    ones = [1] * len(window)
    wide = dy.to(torch.promote_types(dy.dtype, torch.float32))
    share = wide / count_window_elements(wide, size, window, stride, padding, count_padding)
    parts = share.view(*share.shape, *ones).expand(*share.shape, *window)
    return fold(parts, size, stride, padding, ones).to(dy.dtype)


def count_window_elements(
    like: torch.Tensor, size: Sequence[int], window: Sequence[int], stride: Sequence[int],
    padding: Pairs, count_padding: bool,
) -> torch.Tensor:  # fmt: skip
    """Return how many elements each window averages, [1, 1, *positions]."""
    one = pad(like.new_ones((1, 1, *size)), padding, 1 if count_padding else 0)
    return windows(one, window, stride, [1] * len(window)).flatten(-len(window)).sum(-1)


__all__ = [
    "convolve_windows", "convolve_windows_input_gradient", "convolve_windows_weight_gradient",
    "max_windows", "max_windows_gradient", "mean_windows", "mean_windows_gradient", "pad",
]  # fmt: skip
