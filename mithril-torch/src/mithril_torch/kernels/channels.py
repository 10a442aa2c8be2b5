"""Norms of channels over a batch, and of groups of channels."""

from __future__ import annotations

from mithril.spi import Types, ops

from mithril_torch.kernels.expression import number
from mithril_torch.kernels.table import kernel, same

same({
    ops.BatchNormGradient: "batch_norm_gradient({0}, {1}, {2}, {3}, {4})",
    ops.ChannelMoments: "channel_moments({0})",
    ops.ChannelSums: "channel_sums({0}, {1}, {2})",
})  # fmt: skip


@kernel(ops.BatchNorm)
def batch_norm(op: ops.BatchNorm, types: Types) -> str:
    """(y, mean, variance, reciprocal standard deviation)."""
    return f"batch_norm({{0}}, {{1}}, {{2}}, {number(op.epsilon)})"


@kernel(ops.NormalizeChannels)
def normalize_channels(op: ops.NormalizeChannels, types: Types) -> str:
    """PyTorch's kernel of inference."""
    return f"normalize_channels({{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {number(op.epsilon)})"


@kernel(ops.ChannelGradient)
def channel_gradient(op: ops.ChannelGradient, types: Types) -> str:
    """Two passes over x and the cotangent."""
    return f"channel_gradient({{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {{5}}, {op.count})"


@kernel(ops.GroupNorm)
def group_norm(op: ops.GroupNorm, types: Types) -> str:
    """(y, mean, reciprocal standard deviation)."""
    rows = "{1}, {2}" if len(types) > 1 else "None, None"
    return f"group_norm({{0}}, {rows}, {op.groups}, {number(op.epsilon)})"


@kernel(ops.GroupNormGradient)
def group_norm_gradient(op: ops.GroupNormGradient, types: Types) -> str:
    """Of x, and of gain and bias where x is scaled."""
    if len(types) > 4:
        return f"group_norm_gradient({{0}}, {{1}}, {{2}}, {{3}}, {{4}}, {op.groups})"
    return f"group_norm_gradient({{0}}, {{1}}, {{2}}, {{3}}, None, {op.groups})[0]"
