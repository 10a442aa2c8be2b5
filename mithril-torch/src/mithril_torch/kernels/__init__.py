"""How every op is written in PyTorch; importing this package fills `WRITTEN`."""

from mithril_torch.kernels import basic, linalg
from mithril_torch.kernels.registry import WRITTEN

__all__ = ["WRITTEN", "basic", "linalg"]
