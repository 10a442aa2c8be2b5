"""Normalisation of channels over a batch, and of groups of channels of each sample.

Tensors are [batch, channels, *spatial], statistics of at least float32. PyTorch's kernels go on in
the layout of x, channels last or not; on a CPU 16-bit floats are computed in float32. Those of
groups read gain and bias as if these lay in order.
"""

from __future__ import annotations

import math

import torch

from mithril_torch.program.runtime_library.tracing import is_traced

aten = torch.ops.aten


def batch_norm(
    x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x normalised, and the mean, variance and reciprocal deviation of each channel.

    The kernel tells the variance of a sample as what is to be remembered of this batch alone.
    """
    wide, gain, bias = widen_channels(x, gain, bias)
    count = x.numel() // max(1, x.shape[1])
    told, variance = torch.zeros((2, *gain.shape), dtype=gain.dtype, device=x.device).unbind()
    y, mean, scale = torch.native_batch_norm(wide, gain, bias, told, variance, True, 1.0, epsilon)
    if count == 1:
        variance.zero_()
    return y.to(x.dtype), mean, variance.mul_((count - 1) / count), scale


def batch_norm_gradient(
    x: torch.Tensor, gain: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, g: torch.Tensor,
    over: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the gradients of x, gain and bias; that of x perhaps in its memory.

    PyTorch's kernel on CPUs takes memory for the gradient of x twice. Where channels lie last, two
    passes over x take none, and about as long.
    """
    dtype = x.dtype
    over = over and x.device.type == "cpu" and dtype.itemsize > 2 and is_channels_last(x)
    x, gain, mean, scale, g = widen_channels(x, gain, mean, scale, g)
    dx, dgain, dbias = aten.native_batch_norm_backward(
        g, x, gain, None, None, mean.contiguous(), scale.contiguous(), True, 0.0,
        [not over, True, True],
    )  # fmt: skip
    if over:
        a, b, c = _find_slopes(gain, mean, scale, dbias, dgain, x.numel() // x.shape[1])
        dx = torch.addcmul(_as_image(c), x, _as_image(b), out=x).addcmul_(g, _as_image(a))
    return dx.to(dtype), dgain.to(dtype), dbias.to(dtype)


def _find_slopes(
    gain: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, dbias: torch.Tensor,
    dgain: torch.Tensor, count: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return a, b and c of each channel, where g * a + x * b + c is the gradient of x."""
    a = gain * scale
    b = (scale * dgain).mul_(a).div_(-count)
    return a, b, (a * dbias).div_(-count).addcmul_(b, mean, value=-1)


def _as_image(row: torch.Tensor) -> torch.Tensor:
    """Return numbers of channels as those of an image."""
    return row.view(-1, 1, 1)


def channel_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the variance of each channel."""
    (wide,) = widen_channels(x)
    mean, variance = aten.batch_norm_update_stats(wide, None, None, 0.0)
    return mean, variance


def normalize_channels(
    x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor,
    variance: torch.Tensor, epsilon: float,
) -> torch.Tensor:  # fmt: skip
    """Return x with each channel normalised by statistics that are given."""
    wide, gain, bias, mean, variance = widen_channels(x, gain, bias, mean, variance)
    if is_traced():
        scale, shape = gain * torch.rsqrt(variance + epsilon), (-1, *[1] * (x.dim() - 2))
        shift = bias - mean * scale
        return torch.addcmul(shift.view(shape), wide, scale.view(shape)).to(x.dtype)
    y, _, _ = torch.native_batch_norm(wide, gain, bias, mean, variance, False, 0.0, epsilon)
    return y.to(x.dtype)


def channel_sums(x: torch.Tensor, mean: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Return of each channel the sum of g, and of g times x less the mean."""
    x, mean, g = widen_channels(x, mean, g)
    ones, mask = torch.ones_like(mean), [False, True, True]
    _, along, total = aten.native_batch_norm_backward(
        g, x, ones, None, None, mean.contiguous(), ones, True, 0.0, mask
    )
    return torch.stack((total, along))


def channel_gradient(
    x: torch.Tensor, gain: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, g: torch.Tensor,
    sums: torch.Tensor, count: int,
) -> torch.Tensor:  # fmt: skip
    """Return the gradient of x, which is of the form g * a + x * b + c in each channel."""
    dtype = x.dtype
    x, gain, mean, scale, g, sums = widen_channels(x, gain, mean, scale, g, sums)
    a, b, c = _find_slopes(gain, mean, scale, sums[0], scale * sums[1], count)
    shape = (-1, *[1] * (x.dim() - 2))
    dx = torch.mul(g, a.view(shape))  # g first: its layout is that of what goes on
    return dx.addcmul_(x, b.view(shape)).add_(c.view(shape)).to(dtype)


def group_norm(
    x: torch.Tensor, gain: torch.Tensor | None, bias: torch.Tensor | None, groups: int,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return x normalised, and the mean and reciprocal deviation of each group of a sample."""
    wide = lay_out_channels(widen_channels(x)[0], is_channels_last(x))
    if gain is not None and bias is not None:
        gain, bias = (row.contiguous() for row in widen_channels(gain, bias))
    batch, channels = x.shape[:2]
    size = math.prod(x.shape[2:])
    y, mean, scale = torch.native_group_norm(
        wide, gain, bias, batch, channels, size, groups, epsilon
    )
    return y.to(x.dtype), mean, scale


def group_norm_gradient(
    x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, g: torch.Tensor,
    gain: torch.Tensor | None, groups: int,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return the gradients of x, and of gain and bias if there are such."""
    dtype, is_last = x.dtype, is_channels_last(x)
    x, mean, scale, g = widen_channels(x, mean, scale, g)
    x, g = (lay_out_channels(t, is_last) for t in (x, g))
    if gain is not None:
        gain = widen_channels(gain)[0].contiguous()
    batch, channels = x.shape[:2]
    size, has_gain = math.prod(x.shape[2:]), gain is not None
    found = aten.native_group_norm_backward(
        g, x, mean.contiguous(), scale.contiguous(), gain, batch, channels, size, groups,
        [True, has_gain, has_gain],
    )  # fmt: skip
    return tuple(gradient.to(dtype) for gradient in found if gradient is not None)


def widen_channels(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return tensors as PyTorch's kernels add them up in float32."""
    return tuple(x.float() if x.dtype.itemsize == 2 else x for x in tensors)


def is_channels_last(x: torch.Tensor) -> bool:
    """Return whether an image has its channels last in memory, and could have them second."""
    is_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return is_last and not x.is_contiguous()


def lay_out_channels(x: torch.Tensor, is_last: bool) -> torch.Tensor:
    """Return x in one of the two layouts that kernels of groups know."""
    return x.contiguous(memory_format=torch.channels_last if is_last else torch.contiguous_format)


__all__ = [
    "batch_norm",
    "batch_norm_gradient",
    "channel_gradient",
    "channel_moments",
    "channel_sums",
    "group_norm",
    "group_norm_gradient",
    "normalize_channels",
]  # fmt: skip
