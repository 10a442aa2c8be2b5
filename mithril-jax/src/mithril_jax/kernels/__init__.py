"""JAX kernels of all ops; importing this package fills `KERNELS`."""

from mithril_jax.kernels import (
    collective,
    elementwise,
    fused,
    index,
    linalg,
    loss,
    movement,
    random,
    reduction,
    window,
)
from mithril_jax.kernels.registry import KERNELS

fused.register_fused()

__all__ = [
    "KERNELS", "collective", "elementwise", "fused", "index", "linalg", "loss", "movement",
    "random", "reduction", "window",
]  # fmt: skip
