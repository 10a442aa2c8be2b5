"""Layout of images, and convolution of 16-bit floats: a CPU does not always add in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


def images(x: torch.Tensor) -> torch.Tensor:
    """Return images whose channels lie last in memory; what they make lies alike."""
    return x.contiguous(memory_format=torch.channels_last)


def as_channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return a view of an image that lies so either way, with the strides of channels that do."""
    _, channels, rows, columns = x.shape
    strides = (rows * columns * channels, 1, columns * channels, channels)
    return x.contiguous().as_strided(x.shape, strides)


def blank(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return memory for an image nobody has written to; its channels are last where others' are."""
    is_last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.contiguous_format
    if is_last and not like.is_contiguous():
        layout = torch.channels_last
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)


def convolution_16(x: torch.Tensor, w: torch.Tensor, *how: Any) -> torch.Tensor:
    """Return a convolution, as `aten.convolution` does."""
    if x.is_cuda:
        return aten.convolution(x, w, *how)  # type: ignore[no-any-return]
    return aten.convolution(x.float(), w.float(), *how).to(x.dtype)  # type: ignore[no-any-return]


def convolution_backward_16(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *how: Any
) -> list[torch.Tensor | None]:
    """Return the gradients of a convolution, as `aten.convolution_backward` does."""
    if dy.is_cuda:
        return list(aten.convolution_backward(dy, x, w, *how))
    found = aten.convolution_backward(dy.float(), x.float(), w.float(), *how)
    return [None if gradient is None else gradient.to(dy.dtype) for gradient in found]


__all__ = ["as_channels_last", "blank", "convolution_16", "convolution_backward_16", "images"]
