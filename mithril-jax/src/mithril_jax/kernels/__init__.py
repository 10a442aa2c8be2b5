"""JAX kernels of all ops; importing this package fills `KERNELS`."""

from mithril_jax.kernels import (
    bucket,
    channels,
    collectives,
    control,
    conv,
    dynamic_slicing,
    elementwise,
    fused,
    grouped,
    host,
    index,
    linalg,
    loss,
    matrix,
    moe,
    order,
    pool,
    random,
    reduce,
    shape,
    shard,
)
from mithril_jax.kernels.table import KERNELS, kernels_on

fused.register_fused()

__all__ = [
    "KERNELS", "kernels_on", "bucket", "channels", "collectives", "control", "conv",
    "dynamic_slicing", "elementwise", "fused", "grouped", "host", "index", "linalg", "loss",
    "matrix", "moe", "order", "pool", "random", "reduce", "shape", "shard",
]  # fmt: skip
