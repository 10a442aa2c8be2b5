"""Layer norm, RMS norm and their gradients."""

from __future__ import annotations

from mithril.spi import Types, ops

from mithril_torch.kernels.expression import number
from mithril_torch.kernels.table import kernel, same

same({
    ops.LayerNormGradient: "layer_norm_gradient({0}, {1}, {2}, {3}, {4})",
    ops.RmsNormGradient: "rms_norm_gradient({0}, {1}, {2}, {3})",
})  # fmt: skip


@kernel(ops.LayerNorm)
def layer_norm(op: ops.LayerNorm, types: Types) -> str:
    """(y, mean, reciprocal standard deviation)."""
    return f"layer_norm({{0}}, {{1}}, {{2}}, {number(op.epsilon)})"


@kernel(ops.RmsNorm)
def rms_norm(op: ops.RmsNorm, types: Types) -> str:
    """(y, reciprocal root mean square)."""
    return f"rms_norm({{0}}, {{1}}, {number(op.epsilon)})"
