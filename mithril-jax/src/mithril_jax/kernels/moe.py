"""Kernels of MoE dispatch and combine, inside groups; an id that names no row gives zeros."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from mithril.spi import KernelRun, Types, accumulator, ops

from mithril_jax.kernels.table import kernel


@kernel(ops.MoeDispatch)
def moe_dispatch(op: ops.MoeDispatch, types: Types) -> KernelRun:
    """Rows copied, group by group."""
    return lambda x, ids, back: _rows(x, ids)


@kernel(ops.MoeCombine)
def moe_combine(op: ops.MoeCombine, types: Types) -> KernelRun:
    """Rows of each round added up; of 16-bit floats in float32."""
    (result,) = op.infer(types)
    accumulate, rows = accumulator(result.dtype), op.rows

    def run(x: Any, ids: Any, back: Any) -> Any:
        rounds = ids.shape[1] // max(rows, 1)
        total = jnp.zeros(result.shape, accumulate)
        for start in range(0, rounds * rows, max(rows, 1)):
            found = _rows(x, lax.slice_in_dim(ids, start, start + rows, axis=1))
            total = total + lax.convert_element_type(found, accumulate)
        return lax.convert_element_type(total, result.dtype.numpy)

    return run


def _rows(x: Any, ids: Any) -> Any:
    group = lax.broadcasted_iota(ids.dtype, ids.shape, 0)
    return x.at[group, ids].get(mode="fill", fill_value=0, wrap_negative_indices=False)
