"""Rotary position embedding."""

from __future__ import annotations

from mithril.spi import Types
from mithril.spi.ops import Rope, rope_speeds

from mithril_torch.kernels.expression import number
from mithril_torch.kernels.table import kernel


@kernel(Rope)
def rope(op: Rope, types: Types) -> str:
    """Pairs of a head's elements turned by their angles."""
    how = f"{_turning(op, types)}, {op.offset}, {op.interleaved}, {op.inverse}"
    positions = ", {1}" if len(types) > 1 else ""
    return f"rope({{0}}, {how}{positions})"


def _turning(op: Rope, types: Types) -> str:
    """Return the base of the wavelengths, or how far each pair turns a position if not by it."""
    if not op.scaling:
        return number(op.base)
    speeds = rope_speeds(op.base, op.scaling, types[0].shape[3])
    return f"({''.join(f'{speed!r}, ' for speed in speeds)})"
