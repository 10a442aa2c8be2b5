"""MLX kernels of all ops; importing this package fills `KERNELS`."""

from mithril_mlx.kernels import (
    attention,
    control,
    conv,
    dynamic_slicing,
    elementwise,
    grouped,
    host,
    index,
    linalg,
    loss,
    matrix,
    moe,
    nn,
    normalization,
    order,
    pool,
    position,
    random,
    reduce,
    shape,
    shard,
)
from mithril_mlx.kernels.table import KERNELS

__all__ = [
    "KERNELS", "attention", "control", "conv", "dynamic_slicing", "elementwise", "grouped", "host",
    "index", "linalg", "loss", "matrix", "moe", "nn", "normalization", "order", "pool",
    "position", "random", "reduce", "shape", "shard",
]  # fmt: skip
