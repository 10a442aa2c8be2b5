"""Ops that turn a device's index into a part of a value."""

from __future__ import annotations

from mithril.spi import Types
from mithril.spi.ops import KeepFirst, TakeShard

from mithril_torch.kernels.table import kernel, same

same({KeepFirst: "keep_first({0}, {1})"})


@kernel(TakeShard)
def take_shard(op: TakeShard, types: Types) -> str:
    """Part number {1}."""
    if op.count == 1:
        return "{0}"
    return f"take_shard({{0}}, {{1}}, {op.dimension}, {op.count})"
