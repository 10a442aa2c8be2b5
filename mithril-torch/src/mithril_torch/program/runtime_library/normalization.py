"""Normalisation along the last dimension, with the statistics that its gradient needs.

Statistics are [...], in at least float32. On a CPU PyTorch gives those of 16-bit floats in float32
only if gain and bias are float32; on CUDA it wants these in the dtype of x.
"""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.tracing import is_traced

aten = torch.ops.aten


def layer_norm(
    x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x normalised, its means and its reciprocal standard deviations."""
    wide = x
    if x.dtype.itemsize == 2 and (is_traced() or not x.is_cuda):
        gain, bias = gain.float(), bias.float()
        wide = x.float() if is_traced() else x  # a compiler gives statistics in the dtype of x
    y, mean, scale = torch.native_layer_norm(wide, gain.shape, gain, bias, epsilon)
    return y.to(x.dtype), mean.squeeze(-1), scale.squeeze(-1)


def layer_norm_gradient(
    x: torch.Tensor, gain: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x, gain and bias.

    On a CPU PyTorch adds up those of gain and bias in the dtype of x.
    """
    dtype = x.dtype
    mean, scale = mean.contiguous(), scale.contiguous()  # the kernel reads them as if they were
    if dtype.itemsize == 2:
        mean, scale = mean.float(), scale.float()
        if not x.is_cuda:
            x, gain, g = x.float(), gain.float(), g.float()
    dx, dgain, dbias = aten.native_layer_norm_backward(
        g, x, gain.shape, mean, scale, gain, gain, [True, True, True]
    )
    if dtype.itemsize == 2:
        return dx.to(dtype), dgain.to(dtype), dbias.to(dtype)
    return dx, dgain, dbias


def rms_norm(
    x: torch.Tensor, gain: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x over its root mean square, and the reciprocal of that."""
    wide = x.float() if x.dtype.itemsize == 2 else x
    scale = torch.linalg.vector_norm(wide, dim=-1).square_().div_(x.shape[-1])
    scale = scale.add_(epsilon).rsqrt_()
    return (wide * scale.unsqueeze(-1)).mul_(gain).to(x.dtype), scale


def rms_norm_gradient(
    x: torch.Tensor, gain: torch.Tensor, scale: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x and gain: those of a layer_norm whose mean is 0, but for a term.

    That kernel makes one pass over x and g; the term, `scale` times the mean of g times gain, is
    added back.
    """
    dtype, scale = x.dtype, scale.contiguous()
    if dtype.itemsize == 2:
        x, gain, scale, g = x.float(), gain.float(), scale.float(), g.float()
    if is_traced():
        dx, dgain = differentiate_rms_norm(x, gain, scale.unsqueeze(-1), g)
        return dx.to(dtype), dgain.to(dtype)
    dx, dgain, _ = aten.native_layer_norm_backward(
        g, x, gain.shape, torch.zeros_like(scale), scale, gain, None, [True, True, False]
    )
    level = torch.matmul(g, gain).mul_(scale).div_(x.shape[-1])
    return dx.add_(level.unsqueeze(-1)).to(dtype), dgain.to(dtype)


def differentiate_rms_norm(
    x: torch.Tensor, gain: torch.Tensor, scale: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same gradients, in ops that PyTorch's compiler makes a kernel or two of."""
    normal, slope = x * scale, g * gain
    level = (slope * normal).mean(-1, keepdim=True)
    return (slope - normal * level) * scale, (g * normal).reshape(-1, x.shape[-1]).sum(0)


__all__ = ["layer_norm", "layer_norm_gradient", "rms_norm", "rms_norm_gradient"]
