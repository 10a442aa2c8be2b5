"""Kernels of all ops on the Python array API standard; importing this package fills `KERNELS`."""

from mithril.engine.kernels import (
    attention,
    conv,
    elementwise,
    index,
    linalg,
    nn,
    random,
    reduce,
    shape,
    shard,
)
from mithril.engine.kernels.registry import KERNELS, Kernel, Run, kernel

__all__ = [
    "KERNELS", "Kernel", "Run", "attention", "conv", "elementwise", "index", "kernel", "linalg",
    "nn", "random", "reduce", "shape", "shard",
]  # fmt: skip
