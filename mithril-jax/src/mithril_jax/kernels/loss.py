"""The kernel of cross-entropy: the logit of the target is picked, not summed out of a mask.

Its expansion, which a split vocabulary needs, has the mask; on one device that would be a pass over
all logits, twice. The gradient is the expansion's: it has to touch every logit anyway.
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
