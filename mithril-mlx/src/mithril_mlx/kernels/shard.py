"""Kernels of the ops that turn a device's index into a part of a value."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mithril.spi import KernelRun, Types
from mithril.spi.ops import KeepFirst, TakeShard

from mithril_mlx.kernels.elementwise import number
from mithril_mlx.kernels.table import kernel


@kernel(TakeShard)
def take_shard(op: TakeShard, types: Types) -> KernelRun:
    """Part number `index`."""
    (result,) = op.infer(types)
    axes, shape, size = (op.dimension,), result.shape, result.shape[op.dimension]

    def run(x: Any, index: Any) -> Any:
        return mx.slice(x, index * size, axes, shape)

    return run


@kernel(KeepFirst)
def keep_first(op: KeepFirst, types: Types) -> KernelRun:
    """The operand on index 0, zeros elsewhere."""
    zero = number(0, types[0].dtype)
    return lambda x, index: mx.where(mx.equal(index, 0), x, zero)
