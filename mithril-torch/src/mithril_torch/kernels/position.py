"""Rotary position embedding."""

from __future__ import annotations

from mithril.engine.kernels.registry import Types
from mithril.ops.position import Rope

from mithril_torch.kernels.expression import number
from mithril_torch.kernels.table import kernel


@kernel(Rope)
def rope(op: Rope, types: Types) -> str:
    """Pairs of a head's elements turned by their angles."""
    how = f"{number(op.base)}, {op.offset}, {op.interleaved}, {op.inverse}"
    positions = ", {1}" if len(types) > 1 else ""
    return f"rope({{0}}, {how}{positions})"
