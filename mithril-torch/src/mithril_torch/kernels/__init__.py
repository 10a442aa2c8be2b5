"""How every op is written in PyTorch; importing this package fills `EXPRESSIONS`."""

from mithril_torch.kernels import (
    basic,
    elementwise,
    grouped,
    index,
    linalg,
    moe,
    movement,
    neural,
    random,
    reduction,
    window,
)
from mithril_torch.kernels.registry import EXPRESSIONS

__all__ = [
    "EXPRESSIONS", "basic", "elementwise", "grouped", "index", "linalg", "moe", "movement",
    "neural", "random", "reduction", "window",
]  # fmt: skip
