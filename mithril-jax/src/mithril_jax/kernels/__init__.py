"""JAX kernels of all ops; importing this package fills `KERNELS`."""

from mithril_jax.kernels import (
    bucket,
    collective,
    elementwise,
    fused,
    grouped,
    index,
    linalg,
    loss,
    moe,
    movement,
    random,
    reduction,
    window,
)
from mithril_jax.kernels.registry import KERNELS, kernels_on

fused.register_fused()

__all__ = [
    "KERNELS", "bucket", "collective", "elementwise", "fused", "grouped", "index", "kernels_on",
    "linalg", "loss", "moe", "movement", "random", "reduction", "window",
]  # fmt: skip
