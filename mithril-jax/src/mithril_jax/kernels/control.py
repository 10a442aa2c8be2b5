"""The kernel of `after`: what keeps a value from being fused or computed again across it."""

from __future__ import annotations

from mithril.engine.kernels.registry import Run, Types
from mithril.ops.control import After

from mithril_jax.kernels.table import kernel


@kernel(After)
def after(op: After, types: Types) -> Run:
    """The operand itself: what keeps it apart is put in when a whole program is lowered."""
    return lambda x, dependency: x
