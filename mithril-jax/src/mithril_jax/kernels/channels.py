"""The kernel of normalize_channels, which takes one product and one sum for each element.

XLA leaves a mean that is known and a scale apart. On CPU it puts what surrounds convolutions into
kernels of a hundred operations at most, and what is cut off there is written out in full. What is
rounded is x times its scale, in at least float32, which moves the result no more than a rounding
of x does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from mithril.spi import KernelRun, OfImages, Types, accumulator, ops

from mithril_jax.kernels.conv import read_images
from mithril_jax.kernels.table import kernel


@kernel(ops.NormalizeChannels)
def normalize_channels(op: ops.NormalizeChannels | OfImages, types: Types) -> KernelRun:
    """x times gain over the root of the variance, plus what is left of bias and mean by that."""
    x_type, dtype = types[0], accumulator(types[0].dtype)
    of, (_, channels, *_) = read_images(op, x_type.rank)
    epsilon = np.asarray(of.epsilon, dtype)

    def column(row: Any) -> Any:
        return lax.broadcast_in_dim(row, x_type.shape, (channels,))

    def run(*operands: Any) -> Any:
        x, gain, bias, mean, variance = (lax.convert_element_type(y, dtype) for y in operands)
        scale = lax.mul(lax.rsqrt(lax.add(variance, lax.full_like(variance, epsilon))), gain)
        shift = lax.sub(bias, lax.mul(mean, scale))
        y = lax.add(lax.mul(x, column(scale)), column(shift))
        return lax.convert_element_type(y, x_type.dtype.numpy)

    return run
