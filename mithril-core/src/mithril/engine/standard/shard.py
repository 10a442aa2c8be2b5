"""Shared kernels of the ops that turn a device's index into a part of a value."""

from __future__ import annotations

from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.dynamic_slicing import read_part
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in
from mithril.engine.standard.table import kernel
from mithril.types import DType


@kernel(ops.TakeShard)
def take_shard(op: ops.TakeShard, types: Types, xp: ArrayNamespace) -> Run:
    """Part number `index`, which may be known only when the program runs."""
    size, axis = types[0].shape[op.dimension] // op.count, op.dimension

    def run(x: Any, index: Any) -> Any:
        start = xp.astype(index, dtype_in(xp, DType.int64), copy=False) * size
        return read_part(x, axis, start, size, xp)

    return run


@kernel(ops.KeepFirst)
def keep_first(op: ops.KeepFirst, types: Types, xp: ArrayNamespace) -> Run:
    """The operand on index 0, zeros elsewhere."""
    return lambda x, index: xp.where(index == 0, x, xp.zeros_like(x))
