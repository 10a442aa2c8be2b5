"""Random bits, equal to the core's bit for bit."""

from __future__ import annotations

from mithril.spi import Types
from mithril.spi.ops import RandomBits

from mithril_torch.kernels.table import kernel


@kernel(RandomBits)
def random_bits(op: RandomBits, types: Types) -> str:
    """Encrypt each element's global index under (seed, salt)."""
    offsets = "".join(f", {{{i}}}" for i in range(1, len(types)))
    salt = op.salt & 0xFFFFFFFF
    return f"random_bits({{0}}, {salt}, {op.width}, {op.shape}, {op.global_shape}{offsets})"
