"""The kernel of ops on images whose channels come last."""

from __future__ import annotations

from mithril.spi import Kernel, KernelRun, OfImages, Op, Types, ops

from mithril_jax.kernels import channels, conv, pool

_KERNELS: dict[type[Op], Kernel] = {
    ops.Convolution: conv.convolution,
    ops.ConvolutionInputGradient: conv.input_gradient,
    ops.ConvolutionWeightGradient: conv.weight_gradient,
    ops.MaxPool: pool.max_pool,
    ops.MaxPoolGradient: pool.max_pool_gradient,
    ops.AvgPool: pool.avg_pool,
    ops.AvgPoolGradient: pool.avg_pool_gradient,
    ops.NormalizeChannels: channels.normalize_channels,
}


def of_images(op: OfImages, types: Types) -> KernelRun:
    """That of the op as the core has it, which also takes images so."""
    return _KERNELS[type(op.of)](op, types)
