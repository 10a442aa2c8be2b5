"""Kernels of ops for NumPy, written to be fast there; importing this package fills `KERNELS`.

What is not here NumPy has from the shared ones, `mithril.engine.standard`.
"""

from mithril.engine.kernels import (
    attention,
    channels,
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
from mithril.engine.kernels.custom import kernels_for
from mithril.engine.kernels.registry import (
    KERNELS,
    Kernel,
    KernelTable,
    Run,
    kernel,
    on_namespace,
)

__all__ = [
    "KERNELS", "Kernel", "KernelTable", "Run", "attention", "channels", "conv",
    "dynamic_slicing", "elementwise", "grouped", "host", "index", "kernel", "kernels_for", "linalg",
    "loss", "matrix", "moe", "nn", "normalization", "on_namespace", "optimizer", "order", "pool",
    "position", "random", "recurrent", "reduce", "shape", "shard",
]  # fmt: skip
