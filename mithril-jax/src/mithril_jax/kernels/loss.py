"""The kernels of cross-entropy and its gradient: the target's logit is picked, and written, alone.

Their expansions, which a split vocabulary needs, have a mask. On one device that would be further
passes over all logits: XLA computes what is behind the powers once for each that uses it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from mithril.spi import KernelRun, Types, accumulator, ops

from mithril_jax.kernels.table import kernel


@kernel(ops.CrossEntropy)
def cross_entropy(op: ops.CrossEntropy, types: Types) -> KernelRun:
    """log sum exp minus the logit of the target; NaN where the target is no class."""
    logits, accumulate = types[0], accumulator(types[0].dtype)
    last, rows = logits.rank - 1, logits.shape[:-1]
    leading = tuple(range(last))

    def run(x: Any, targets: Any) -> Any:
        x = lax.convert_element_type(x, accumulate)
        top = lax.reduce_max(x, (last,))
        powers = lax.exp(lax.sub(x, lax.broadcast_in_dim(top, logits.shape, leading)))
        total = lax.add(lax.log(lax.reduce_sum(powers, (last,))), top)
        at = (*(lax.broadcasted_iota(np.int32, rows, i) for i in leading), targets)
        hit = x.at[at].get(mode="fill", fill_value=np.nan, wrap_negative_indices=False)
        return lax.convert_element_type(lax.sub(total, hit), logits.dtype.numpy), total

    return run


@kernel(ops.CrossEntropyGradient)
def cross_entropy_gradient(op: ops.CrossEntropyGradient, types: Types) -> KernelRun:
    """The cotangent times the probability of each class, less the cotangent at the target."""
    logits, accumulate = types[0], accumulator(types[0].dtype)
    rows = logits.size // max(logits.shape[-1], 1)

    def run(x: Any, targets: Any, total: Any, cotangent: Any) -> Any:
        # As a matrix, which is what products take: other shapes of the result would be copies.
        x = lax.convert_element_type(lax.reshape(x, (rows, logits.shape[-1])), accumulate)
        total, cotangent = (
            lax.convert_element_type(lax.reshape(y, (rows,)), accumulate)
            for y in (total, cotangent)
        )
        wide = (lax.broadcast_in_dim(y, x.shape, (0,)) for y in (total, cotangent))
        likely = lax.mul(lax.exp(lax.sub(x, next(wide))), next(wide))
        at = lax.iota(np.int32, rows), lax.reshape(targets, (rows,))
        slope = likely.at[at].add(lax.neg(cotangent), mode="drop", wrap_negative_indices=False)
        return lax.convert_element_type(lax.reshape(slope, logits.shape), logits.dtype.numpy)

    return run
