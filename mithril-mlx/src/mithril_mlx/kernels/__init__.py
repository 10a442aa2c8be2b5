"""MLX kernels of all ops; importing this package fills `KERNELS`."""

from mithril_mlx.kernels import (
    attention,
    choice,
    elementwise,
    grouped,
    index,
    linalg,
    loss,
    moe,
    movement,
    nn,
    normalization,
    order,
    pool,
    position,
    random,
    reduction,
    shard,
    window,
)
from mithril_mlx.kernels.registry import KERNELS

__all__ = [
    "KERNELS", "attention", "choice", "elementwise", "grouped", "index", "linalg", "loss", "moe",
    "movement", "nn", "normalization", "order", "pool", "position", "random", "reduction", "shard",
    "window",
]  # fmt: skip
