"""How every op is written in PyTorch; importing this package fills `WRITTEN`."""

from mithril_torch.kernels import (
    basic,
    elementwise,
    exchange,
    grouped,
    index,
    linalg,
    movement,
    neural,
    random,
    reduction,
    window,
)
from mithril_torch.kernels.registry import WRITTEN

__all__ = [
    "WRITTEN", "basic", "elementwise", "exchange", "grouped", "index", "linalg", "movement",
    "neural", "random", "reduction", "window",
]  # fmt: skip
