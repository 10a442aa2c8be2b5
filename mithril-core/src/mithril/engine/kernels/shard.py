"""Kernels of the ops that turn a device's index into a part of a value."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ops.collective import KeepFirst, TakeShard


@kernel(TakeShard)
def take_shard(op: TakeShard, types: Types, xp: ModuleType) -> Run:
    """A view of part number `index`."""
    size = types[0].shape[op.dimension] // op.count
    before = (slice(None),) * op.dimension

    def run(x: Any, index: Any) -> Any:
        start = int(index) * size
        return x[(*before, slice(start, start + size))]

    return run


@kernel(KeepFirst)
def keep_first(op: KeepFirst, types: Types, xp: ModuleType) -> Run:
    """The operand on index 0, zeros elsewhere."""
    return lambda x, index: x if int(index) == 0 else xp.zeros_like(x)
