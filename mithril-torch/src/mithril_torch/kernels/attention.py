"""Attention and its gradient."""

from __future__ import annotations

from mithril.spi import Types
from mithril.spi.ops import Attention, AttentionGradient

from mithril_torch.kernels.expression import number
from mithril_torch.kernels.table import kernel


@kernel(Attention)
def attention(op: Attention, types: Types) -> str:
    """(output, logarithm of the sum of exponentials)."""
    mask = ", {3}" if len(types) > 3 else ""
    return f"attention({{0}}, {{1}}, {{2}}, {op.causal}, {number(op.scale)}{mask})"


@kernel(AttentionGradient)
def attention_gradient(op: AttentionGradient, types: Types) -> str:
    """The gradients of q, k and v."""
    operands = "{0}, {1}, {2}, {3}, {4}, {5}"
    mask = ", {6}" if len(types) > 6 else ""
    return f"attention_gradient({operands}, {op.causal}, {number(op.scale)}{mask})"
