"""The kernel of `after`: what keeps a value from being fused or computed again across it."""

from __future__ import annotations

from mithril.spi import KernelRun, Types
from mithril.spi.ops import After

from mithril_jax.kernels.table import kernel


@kernel(After)
def after(op: After, types: Types) -> KernelRun:
    """The operand itself: what keeps it apart is put in when a whole program is lowered."""
    return lambda x, dependency: x
