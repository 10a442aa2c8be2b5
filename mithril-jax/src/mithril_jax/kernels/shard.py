"""Kernels of the ops that turn a device's index into a part of a value."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from mithril.spi import KernelRun, Types, ops

from mithril_jax.kernels.table import kernel


@kernel(ops.TakeShard)
def take_shard(op: ops.TakeShard, types: Types) -> KernelRun:
    """Part number `index`."""
    size = types[0].shape[op.dimension] // op.count
    return lambda x, index: lax.dynamic_slice_in_dim(x, index * size, size, op.dimension)


@kernel(ops.KeepFirst)
def keep_first(op: ops.KeepFirst, types: Types) -> KernelRun:
    """The operand on index 0, zeros elsewhere."""
    return lambda x, index: lax.select(index == 0, x, jnp.zeros_like(x))
