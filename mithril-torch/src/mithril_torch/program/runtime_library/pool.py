"""Pooling by PyTorch's kernels, which know two and three spatial dimensions.

Tensors are [batch, channels, *spatial]. One spatial dimension comes with a window of two, the first
of them 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

aten = torch.ops.aten


def max_pool(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> torch.Tensor:
    """Return the largest element of every window."""
    y, _ = max_pool_indices(as_image(x), window, stride, padding)
    return y.squeeze(2) if x.dim() == 3 else y


def max_pool_gradient(
    x: torch.Tensor, dy: torch.Tensor, window: Sequence[int], stride: Sequence[int],
    padding: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """Give each window's gradient to its first maximum, which is looked for again."""
    dtype, is_line = x.dtype, x.dim() == 3
    if dtype.itemsize == 2:
        x, dy = x.float(), dy.float()  # sums are at least float32
    image = as_image(x)
    _, indices = max_pool_indices(image, window, stride, padding)
    is_flat = image.dim() == 4
    back = (
        aten.max_pool2d_with_indices_backward if is_flat else aten.max_pool3d_with_indices_backward
    )
    ones = [1] * len(window)
    dx: torch.Tensor = back(as_image(dy), image, window, stride, padding, ones, False, indices)
    return (dx.squeeze(2) if is_line else dx).to(dtype)


def max_pool_indices(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest element of every window of an image or a volume, and which it is."""
    pool = aten.max_pool2d_with_indices if x.dim() == 4 else aten.max_pool3d_with_indices
    y, indices = pool(x, window, stride, padding)
    return y, indices


def avg_pool(
    x: torch.Tensor, window: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    count_padding: bool,
) -> torch.Tensor:  # fmt: skip
    """Return the mean of every window; sums are at least float32."""
    image = as_image(x.float() if x.dtype.itemsize == 2 else x)
    pool = aten.avg_pool2d if image.dim() == 4 else aten.avg_pool3d
    y: torch.Tensor = pool(image, window, stride, padding, False, count_padding)
    return (y.squeeze(2) if x.dim() == 3 else y).to(x.dtype)


def avg_pool_gradient(
    dy: torch.Tensor, size: Sequence[int], window: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], count_padding: bool,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of the input, of spatial sizes `size`; sums are at least float32."""
    given = as_image(dy.float() if dy.dtype.itemsize == 2 else dy)
    back = aten.avg_pool2d_backward if given.dim() == 4 else aten.avg_pool3d_backward
    like = as_image(given.new_empty((*dy.shape[:2], *size)))  # only its shape is looked at
    dx: torch.Tensor = back(given, like, window, stride, padding, False, count_padding, None)
    return (dx.squeeze(2) if dy.dim() == 3 else dx).to(dy.dtype)


def as_image(x: torch.Tensor) -> torch.Tensor:
    """Return x, of two spatial dimensions if it has one."""
    return x.unsqueeze(2) if x.dim() == 3 else x


__all__ = ["avg_pool", "avg_pool_gradient", "max_pool", "max_pool_gradient"]
