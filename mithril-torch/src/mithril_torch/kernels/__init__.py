"""How every op is written in PyTorch; importing this package fills `EXPRESSIONS`."""

from mithril_torch.kernels import (
    attention,
    channels,
    control,
    conv,
    dynamic_slicing,
    elementwise,
    grouped,
    host,
    in_place,
    index,
    linalg,
    loss,
    matrix,
    moe,
    nn,
    normalization,
    optimizer,
    order,
    pool,
    position,
    random,
    recurrent,
    reduce,
    shape,
    shard,
)
from mithril_torch.kernels.table import EXPRESSIONS

__all__ = [
    "EXPRESSIONS", "attention", "channels", "control", "conv", "dynamic_slicing", "elementwise",
    "grouped", "host", "in_place", "index", "linalg", "loss", "matrix", "moe", "nn",
    "normalization", "optimizer", "order", "pool", "position", "random", "recurrent", "reduce",
    "shape", "shard",
]  # fmt: skip
